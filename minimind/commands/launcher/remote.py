"""The launcher's words for other hosts: as the shell there must read them, and with what the ranks there must know.

Contract. What a person types after the script arrives at each rank as typed. DeepSpeed's pdsh runner (0.19.8,
launcher/multinode_runner.py ``PDSHRunner.parse_user_args``) puts words with a space between double quotes and leaves
all others as they are, and pdsh replaces ``%h``, ``%n`` and ``%u``; the shell of the other host then reads dollars,
quotes and braces of its own. Open MPI tells no rank where rank 0 is, and the launcher does not, either.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from minimind.base.errors import UserError


def for_other_hosts(words: Sequence[str], options: argparse.Namespace, first: str) -> list[str]:
    """The launcher's ``words``, which are parsed into ``options``, for ranks of which the first is on ``first``.

    Raises UserError for paths that can't be named there.
    """
    name = options.launcher.lower()
    if name == "openmpi" and "MASTER_ADDR" not in (options.launcher_args or ""):
        master = options.master_addr or first.rpartition("@")[2]
        given = f"{options.launcher_args or ''} -x MASTER_ADDR={master}".strip()
        at = len(words) - len(options.user_args) - 1
        return [*words[:at], f"--launcher_args={given}", *words[at:]]
    if name != "pdsh":
        return list(words)
    for what, path in (("this directory", str(Path.cwd())), ("this Python", sys.executable)):
        if shlex.quote(path) != path or "%" in path:
            raise UserError(f"{path}: the launcher can't name {what} to other hosts: take one without such characters")
    at = len(words) - len(options.user_args) - 1
    script = shlex.quote(options.user_script).replace("%", "%%")
    return [*words[:at], script, *map(for_pdsh, options.user_args)]


def for_pdsh(word: str) -> str:
    """The word so that DeepSpeed's quoting, pdsh and the shell of another host make ``word`` of it."""
    if " " in word:  # DeepSpeed adds the double quotes, and a backslash before those within
        for special in ("\\", "$", "`"):
            word = word.replace(special, f"\\{special}")
    else:
        word = shlex.quote(word)
    return word.replace("%", "%%")
