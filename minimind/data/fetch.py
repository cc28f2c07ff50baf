"""MiniMind's own data sets from Hugging Face or ModelScope, resumable, then verified.

Contract: the file lies under its name only after its SHA-256 equals the one that the hub's index states; a
broken download goes on where it stopped when the command is run again. No network, a missing library, an
unknown name or a wrong checksum is a ``UserError`` of one line.

Nothing here needs an account, so no token is sent, neither to the hub nor to where it redirects. Addresses are https,
or plain http on this machine; a redirect elsewhere (ftp, file, plain http) is not followed.

Known weakness: the hubs' libraries follow redirects of the index by their own rules, and modelscope sends the cookie of
a login to its hub; the names and the repositories are MiniMind's of 2025 (pretrain_hq.jsonl 1.6 GB,
sft_mini_512.jsonl 1.2 GB); should upstream rename a file, the message lists what the repository holds.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.files import append_to, free_name, open_inside, sha256_of
from minimind.base.secrets import mask_text

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
    _check_address(_address(hub, endpoint))
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
        complain(f"{target} was another file: it is now {kept}")
    os.rename(partial, target)


def _chosen(hub: str | None) -> str:
    if hub is not None and hub not in HUBS:
        raise UserError(f"{hub}: no such hub; one of {', '.join(HUBS)}")
    for candidate in [hub] if hub else HUBS:
        if importlib.util.find_spec(_LIBRARIES[candidate]) is not None:
            return candidate
    wanted = [_LIBRARIES[candidate] for candidate in ([hub] if hub else HUBS)]
    raise UserError(f"downloading needs {' or '.join(wanted)}: pip install {wanted[0]}")


def _address(hub: str, endpoint: str | None) -> str:
    """Where the hub is."""
    if hub == "modelscope":
        return endpoint or "https://www.modelscope.cn"
    return endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _check_address(url: str) -> None:
    """Refuse what can be read and changed on its way, and what is no HTTP. Raises UserError."""
    try:
        parts = urllib.parse.urlsplit(url)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        scheme, host = "", ""
    if scheme == "https" and host:
        return
    shown = mask_text(url)
    if scheme == "http" and host:
        if _is_loopback(host):
            return
        raise UserError(f"{shown}: plain http is for this machine only: give an address with https://")
    raise UserError(f"{shown}: not an address of a hub: give one with https://")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """To https, or within this machine; urllib itself would follow to ftp, and from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme != "https":
            if req.type == "https":
                raise UserError(f"{mask_text(newurl)}: a redirect from https to this is not followed")
            _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and nothing else: no ftp, no file, no data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _hugging_face(endpoint: str | None) -> _Hub:
    from huggingface_hub import HfApi, hf_hub_url

    repository = _REPOSITORIES["huggingface"]
    hub = HfApi(endpoint=endpoint, token=False)  # False: not even the token of HF_TOKEN or of a login

    def checksum(file: str) -> str | None:
        entries = hub.get_paths_info(repository, file, repo_type="dataset")
        return next((entry.lfs.sha256 for entry in entries if getattr(entry, "lfs", None)), None)

    def names() -> list[str]:
        return [entry.path for entry in hub.list_repo_tree(repository, repo_type="dataset")]

    def download(file: str, partial: Path) -> None:
        _resume(hf_hub_url(repository, file, repo_type="dataset", endpoint=endpoint), partial)

    return _Hub(checksum, names, download)


def _resume(url: str, partial: Path) -> None:
    """GET into ``partial`` from the byte where an earlier run stopped.

    Our own few lines, for both hubs, because huggingface_hub (2.4) gives each run's partial file a new name and so
    begins again. A server that ignores the range answers 200, and the file is written from its start.
    """
    have = partial.lstat().st_size if os.path.lexists(partial) else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with _opener().open(request, timeout=60) as answer, append_to(partial) as file:
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
    address = _address("modelscope", endpoint)

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
        reason = mask_text(" ".join(str(error).split()))[:200] or type(error).__name__
        other = HUBS[1 - HUBS.index(hub)]
        raise UserError(
            f"{file}: {hub} can't be reached or refused ({type(error).__name__}: {reason}); what is here is kept: "
            f"run it again, or try --hub {other}"
        ) from error


def _sha256(file: Path) -> str:
    with open_inside(file.parent, file.name) as stream:
        return sha256_of(stream)
