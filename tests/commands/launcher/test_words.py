"""The launcher's words: what its own code would end with a traceback for is one line, before anything starts."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepspeed.launcher import runner
from deepspeed.utils.numa import parse_range_list

from minimind.base.errors import UserError
from minimind.commands.launcher import hostfile as hostfile_module
from minimind.commands.launcher import words as launch_words
from minimind.commands.launcher.words import check, core_list, parser, prepared, read_words

SCRIPT = __file__


@pytest.fixture(autouse=True)
def _one_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch_words, "count_devices", lambda: ("cpu", 1))
    monkeypatch.setattr(launch_words, "DEFAULT_HOSTFILE", tmp_path / "no-hostfile")
    monkeypatch.setattr(hostfile_module, "unreachable", lambda host, port: None)


def refused(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        prepared([*words, SCRIPT])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hosts(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def actions(of: argparse.ArgumentParser) -> dict[str, object]:
    return {
        name: (action.nargs, action.type, action.choices)
        for action in of._actions
        if action.dest != "help"
        for name in action.option_strings or [action.dest]
    }


def test_the_options_are_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: list[argparse.ArgumentParser] = []

    def parse(self: argparse.ArgumentParser, args: object = None) -> None:
        theirs.append(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    runner.parse_args([])
    wanted = {
        name: (nargs, None if kind is str else kind, choices)
        for name, (nargs, kind, choices) in actions(theirs[0]).items()
    }
    assert actions(parser()) == wanted
    assert set(launch_words.LAUNCHERS) == set(runner.LAUNCHER_CLASSES)
    assert launch_words.DEFAULT_PORT == runner.TORCH_DISTRIBUTED_DEFAULT_PORT


def test_a_launch_without_a_port_gets_a_free_one_and_nothing_else_is_changed() -> None:
    flag, port, *rest = prepared(["--num_gpus", "2", SCRIPT, "--master_port", "5"])  # that one is the script's
    assert flag == "--master_port" and rest == ["--num_gpus", "2", SCRIPT, "--master_port", "5"]
    with socket.socket() as server:
        server.bind(("127.0.0.1", int(port)))


def test_a_port_that_others_must_know_is_not_chosen_here(tmp_path: Path) -> None:
    path = hosts(tmp_path / "hosts", "a slots=1", "b slots=1")
    words = ["--hostfile", path, "--no_ssh", "--node_rank", "1", "--master_addr", "a", SCRIPT]
    assert prepared(words) == words


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_ports(taken: int) -> None:
    assert f"port {taken} is in use by another process" in refused("--master_port", str(taken))
    assert "from 1 to 65535" in refused("--master_port", "70000")
    assert "from 1 to 65535" in refused("--master_port", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_gpus", "two"], "--num_gpus/--num_accelerators: invalid int value"),
        (["--num_gpu5", "2"], 'no option --num_gpu5 (did you mean "--num_gpus"?)'),
        (["--include", "localhost:1"], "localhost has no slot 1"),
        (["--include", "node1"], "'node1' is none of the hosts: localhost"),
        (["--include", "localhost:a"], "is not HOST or HOST:SLOT"),
        (["--exclude", "localhost"], "--exclude localhost leaves no slot"),
        (["--include", "localhost", "--exclude", "localhost"], "--include and --exclude exclude each other"),
        (["--include", "localhost", "--num_gpus", "1"], "can't stand beside --include"),
        (["--num_nodes", "2"], "--num_nodes 2 needs a hostfile"),
        (["--num_gpus", "0"], "--num_gpus 0: expected a number above 0"),
        (["--num_nodes", "-2"], "--num_nodes -2: expected a number above 0"),
        (["--no_ssh"], "--no_ssh needs --node_rank from 0 to 0"),
        (["--module", "--no_python"], "--module and --no_python exclude each other"),
        (["--no_python"], "may not be executed"),
        (["--enable_each_rank_log", __file__], "no directory that can be written"),
        (["--hostfile", "/no/such/file"], "/no/such/file: there is no such hostfile"),
    ],
)
def test_words_that_can_not_work_are_one_line(words: list[str], message: str) -> None:
    assert message in refused(*words)


def test_a_missing_script_is_said() -> None:
    for words, message in ((["nothere.py"], "nothere.py: there is no such script"), ([], "user_script")):
        with pytest.raises(UserError, match=message):
            prepared(words)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0,2", '"0,2": localhost has no slot 2'),
        ("-1", "no slot -1"),
        ("GPU-8f2e,1", "takes numbers only"),
        ("0,", "takes numbers only"),
        ("NoDevFiles", "takes numbers only"),
    ],
)
def test_visible_devices_that_are_not_there(value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    said = refused()
    assert f'CUDA_VISIBLE_DEVICES="{value}"' in said and message in said and "unset" in said
    prepared(["--num_gpus", "2", SCRIPT])  # then the launcher ignores the variable
    assert "beside CUDA_VISIBLE_DEVICES" in refused("--num_gpus", "0")


def test_visible_devices_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_words, "count_devices", lambda: ("cuda", 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 2")
    assert check(read_words([SCRIPT])) == {"localhost": [0, 2]}


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(["--num_gpus", "3", SCRIPT])  # a CPU takes any number
    monkeypatch.setattr(launch_words, "count_devices", lambda: ("cuda", 2))
    assert "--num_gpus 3: this machine has 2" in refused("--num_gpus", "3")
    monkeypatch.setattr(launch_words, "count_devices", lambda: None)  # another accelerator: its own affair
    prepared(["--num_gpus", "3", SCRIPT])


def test_accelerators_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "gpu")
    assert 'DS_ACCELERATOR="gpu" is none of cuda, cpu' in refused()
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(launch_words, "count_devices", lambda: ("cuda", 0))
    assert "there is no GPU here" in refused()


def test_a_hostfile_that_names_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hosts(tmp_path / "hosts", "localhost slots=2")
    prepared(["--hostfile", path, SCRIPT])  # ssh to localhost works: so does the launcher
    monkeypatch.setattr(hostfile_module, "unreachable", lambda host, port: "there is no ssh here")
    said = refused("--hostfile", path)
    assert said.startswith(f"{path}: names localhost, and there is no ssh here") and "--num_gpus 2" in said
    monkeypatch.setattr(launch_words, "DEFAULT_HOSTFILE", Path(path))
    assert said == refused()
    assert "ssh" in refused("--no_ssh", "--node_rank", "0")  # the launcher asks it for the address
    prepared(["--no_ssh", "--node_rank", "0", "--master_addr", "127.0.0.1", SCRIPT])
    prepared(["--no_ssh_check", "--master_addr", "127.0.0.1", SCRIPT])


def test_several_hosts_need_their_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hosts(tmp_path / "hosts", "a slots=1", "b slots=1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--launcher pdsh needs pdsh, which is not installed" in refused("--hostfile", path)
    assert "--launcher rsh: none of pdsh" in refused("--hostfile", path, "--launcher", "rsh")
    prepared(["--hostfile", path, "--include", "a", SCRIPT])  # one host: no launcher
    assert "--num_nodes 3: the hostfile names 2" in refused("--hostfile", path, "--num_nodes", "3")
    assert "needs --node_rank from 0 to 1" in refused("--hostfile", path, "--no_ssh", "--node_rank", "2")


def test_every_host_that_pdsh_is_to_enter_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hosts(tmp_path / "hosts", "a slots=1", "b slots=1")
    (tmp_path / "pdsh").write_text("")
    (tmp_path / "pdsh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hostfile_module, "unreachable", lambda host, port: "it is silent" if host == "b" else None)
    assert refused("--hostfile", path) == (
        f"{path}: names b, and it is silent; see to that host, or leave it out: --exclude b"
    )
    prepared(["--hostfile", path, "--exclude", "b", SCRIPT])
    prepared(["--hostfile", path, "--no_ssh_check", SCRIPT])
    prepared(["--hostfile", path, "--no_ssh", "--node_rank", "0", SCRIPT])


def test_binding_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs numactl" in refused("--bind_cores_to_rank")
    (tmp_path / "numactl").write_text("")
    (tmp_path / "numactl").chmod(0o755)
    bound = ("--bind_cores_to_rank", "--bind_core_list")
    assert "1 cores for 2 ranks" in refused(*bound, "0", "--num_gpus", "2")
    assert "this machine's cores are" in refused(*bound, str(os.cpu_count()))
    prepared([*bound, "0", SCRIPT])
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    assert "unset KMP_AFFINITY" in refused(*bound, "0")


def test_lists_of_cores_are_the_launchers() -> None:
    for text in ("0", "0,2-4,6", "1-1"):
        assert core_list(text) == parse_range_list(text)
    for text in ("", "a", "3-1", "2,1", "0-2,2", "1-2-3", "-1"):
        with pytest.raises(UserError, match="ascending"):
            core_list(text)
