"""MiniMind's own data sets from Hugging Face or ModelScope, resumable, then verified.

Contract: the file lies under its name only after its SHA-256 equals the one that the hub's index states; a
broken download goes on where it stopped when the command is run again. No network, a missing library, an
unknown name or a wrong checksum is a ``UserError`` of one line.

Known weakness: the names and the repositories are MiniMind's of 2025 (pretrain_hq.jsonl 1.6 GB,
sft_mini_512.jsonl 1.2 GB); should upstream rename a file, the message lists what the repository holds.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from minimind.durable import append_to, free_name, open_inside, sha256_of
from minimind.errors import UserError

DATASETS: Mapping[str, str] = {
    "pretrain_hq": "pretrain_hq.jsonl",
    "sft_mini_512": "sft_mini_512.jsonl",
    "sft_512": "sft_512.jsonl",
    "sft_1024": "sft_1024.jsonl",
    "sft_2048": "sft_2048.jsonl",
}
HUBS = ("huggingface", "modelscope")
_LIBRARIES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
_REPOSITORIES = {"huggingface": "jingyaogong/minimind_dataset", "modelscope": "gongjy/minimind_dataset"}


class _Hub(NamedTuple):
    """What a hub's library does for us: a file's SHA-256 if it is there, all names, and (the rest of) one file."""

    checksum: Callable[[str], str | None]
    names: Callable[[], list[str]]
    download: Callable[[str, Path], object]


def fetch(name: str, output: Path, hub: str | None = None, endpoint: str | None = None) -> Path:
    """Download one data set into the directory ``output``; the file's path. A file that is there and right is kept.

    ``hub`` None: the first whose library is installed. ``endpoint``: another address of the hub, such as a mirror
    (Hugging Face's library also reads HF_ENDPOINT).
    """
    if name not in DATASETS:
        raise UserError(f"{name}: no such data set; one of {', '.join(DATASETS)}")
    file, hub = DATASETS[name], _chosen(hub)
    with _explained(hub, file):
        library = _hugging_face(endpoint) if hub == "huggingface" else _modelscope(endpoint)
        expected = library.checksum(file)
        if expected is None:
            there = ", ".join(sorted(library.names())) or "nothing"
            raise UserError(f"{file}: not in {_REPOSITORIES[hub]} any more; it holds {there}")
        target = output / file
        if not (target.is_file() and not target.is_symlink() and _sha256(target) == expected):
            output.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(target.name + ".partial")
            library.download(file, partial)
            if (found := _sha256(partial)) != expected:
                partial.unlink()
                raise UserError(
                    f"{file}: the download is damaged (SHA-256 {found[:12]}, not {expected[:12]}); run it again"
                )
            _publish(partial, target)
    return target


def _publish(partial: Path, target: Path) -> None:
    """Give the verified download its name. Another file that has it may be the user's own: it is kept."""
    if os.path.lexists(target):
        kept = free_name(target, lambda n: f"{target.stem}.{n}{target.suffix}")
        os.rename(target, kept)
        print(f"{target} was another file: it is now {kept}", file=sys.stderr)
    os.rename(partial, target)


def _chosen(hub: str | None) -> str:
    if hub is not None and hub not in HUBS:
        raise UserError(f"{hub}: no such hub; one of {', '.join(HUBS)}")
    for candidate in [hub] if hub else HUBS:
        if importlib.util.find_spec(_LIBRARIES[candidate]) is not None:
            return candidate
    wanted = [_LIBRARIES[candidate] for candidate in ([hub] if hub else HUBS)]
    raise UserError(f"downloading needs {' or '.join(wanted)}: pip install {wanted[0]}")


def _hugging_face(endpoint: str | None) -> _Hub:
    from huggingface_hub import HfApi, hf_hub_url

    repository = _REPOSITORIES["huggingface"]

    def checksum(file: str) -> str | None:
        entries = HfApi(endpoint=endpoint).get_paths_info(repository, file, repo_type="dataset")
        return next((entry.lfs.sha256 for entry in entries if getattr(entry, "lfs", None)), None)

    def names() -> list[str]:
        return [
            entry.path for entry in HfApi(endpoint=endpoint).list_repo_tree(repository, repo_type="dataset")
        ]

    def download(file: str, partial: Path) -> None:
        _resume(hf_hub_url(repository, file, repo_type="dataset", endpoint=endpoint), partial)

    return _Hub(checksum, names, download)


def _resume(url: str, partial: Path) -> None:
    """GET into ``partial`` from the byte where an earlier run stopped.

    Our own few lines, for both hubs, because huggingface_hub (2.4) gives each run's partial file a new name and so
    begins again. A server that ignores the range answers 200, and the file is written from its start.
    """
    try:
        with append_to(partial) as file:
            have = file.seek(0, os.SEEK_END)
            request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
            with urllib.request.urlopen(request, timeout=60) as answer:
                if answer.status != 206:
                    file.truncate(0)
                shutil.copyfileobj(answer, file, 1 << 20)
                if answer.length:  # what the server promised and did not send
                    raise ConnectionError(f"the connection broke {answer.length:,} bytes before the end")
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to send
            raise


def _modelscope(endpoint: str | None) -> _Hub:
    from modelscope.hub.api import HubApi

    repository = _REPOSITORIES["modelscope"]
    address = endpoint or "https://www.modelscope.cn"

    def index() -> dict[str, str | None]:
        files = HubApi(endpoint=address).get_dataset_files(repository)
        return {entry["Path"]: entry.get("Sha256") for entry in files}

    def checksum(file: str) -> str | None:
        return index().get(file)

    def names() -> list[str]:
        return list(index())

    def download(file: str, partial: Path) -> None:
        # The address that modelscope 1.40 itself downloads from, seen at the stand-in server.
        query = urllib.parse.urlencode({"Revision": "master", "FilePath": file})
        _resume(f"{address}/api/v1/datasets/{repository}/repo?{query}", partial)

    return _Hub(checksum, names, download)


@contextmanager
def _explained(hub: str, file: str) -> Iterator[None]:
    """The libraries raise some thirty kinds of exceptions of five packages; a user needs the reason and what to do."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        other = HUBS[1 - HUBS.index(hub)]
        raise UserError(
            f"{file}: {hub} can't be reached or refused ({type(error).__name__}: {reason}); what is here is kept: "
            f"run it again, or try --hub {other}"
        ) from error


def _sha256(file: Path) -> str:
    with open_inside(file.parent, file.name) as stream:
        return sha256_of(stream)
