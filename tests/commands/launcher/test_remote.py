"""What is typed after the script arrives on other hosts as typed, through DeepSpeed's own runner and a shell."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path

import pytest
from deepspeed.launcher.multinode_runner import PDSHRunner

from minimind.base.errors import UserError
from minimind.commands.launcher.remote import for_other_hosts, for_pdsh
from minimind.commands.launcher.words import read_words

WORDS = [
    "plain",
    "a b",
    "it's",
    'say "hi" now',
    "$HOME",
    "a $HOME b",
    "`id` x",
    "`id`",
    "back\\slash",
    "a \\ b",
    "a;b",
    "*",
]
WORDS += [
    "{a,b}",
    "model={vocab_size: 400}",
    "{limit:5,start_limit:9}",
    "50%",
    "%h of %n",
    "a&&b",
    "#no",
    "~",
    "<x>",
    "--x=$Y z",
]


def remote(words: list[str]) -> list[str]:
    """What the shell of the other host makes of the words after the script, which pdsh hands on joined by spaces."""
    parsed = argparse.Namespace(user_args=words, user_script="s.py", launcher_args="", include="", exclude="")
    command = PDSHRunner(parsed, "").user_arguments
    line = " ".join(command).replace("%%", "\0").replace("%h", "HOST").replace("%n", "0").replace("\0", "%")
    printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    return printed.stdout.split("\0")[:-1]


def test_words_arrive_as_typed() -> None:
    assert remote([for_pdsh(word) for word in WORDS]) == WORDS
    assert remote(["$HOME", "{a,b}"]) != ["$HOME", "{a,b}"], "or nothing would have to be done"


def given(*words: str) -> tuple[list[str], argparse.Namespace]:
    return list(words), read_words(words)


def test_the_script_is_quoted_too_and_the_launchers_own_words_are_not() -> None:
    words, options = given("--hostfile", "my hosts", "a dir/s.py", "--set", "x=$y")
    assert for_other_hosts(words, options, "node1") == ["--hostfile", "my hosts", "'a dir/s.py'", "--set", "'x=$y'"]


def test_open_mpi_is_told_where_the_first_rank_is() -> None:
    words, options = given("--launcher", "openmpi", "s.py", "--x", "a b")
    made = for_other_hosts(words, options, "me@node1")
    assert made == ["--launcher", "openmpi", "--launcher_args=-x MASTER_ADDR=node1", "s.py", "--x", "a b"]
    words, options = given("--launcher=openmpi", "--launcher_args", "--np 2", "--master_addr", "10.0.0.1", "s.py")
    made = for_other_hosts(words, options, "node1")
    assert read_words(made).launcher_args == "--np 2 -x MASTER_ADDR=10.0.0.1"
    words, options = given("--launcher=openmpi", "--launcher_args=-x MASTER_ADDR=me", "s.py")
    assert for_other_hosts(words, options, "node1") == words
    words, options = given("--launcher=slurm", "s.py", "a $b")
    assert for_other_hosts(words, options, "node1") == words  # srun starts them without a shell


def test_a_directory_that_a_shell_would_read_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my runs").mkdir()
    monkeypatch.chdir(tmp_path / "my runs")
    words, options = given("s.py")
    with pytest.raises(UserError, match="my runs: the launcher can't name this directory to other hosts"):
        for_other_hosts(words, options, "node1")
    assert shlex.quote(str(tmp_path)) == str(tmp_path), "or this test shows nothing"
