"""MiniMind's own data sets from Hugging Face or ModelScope: resumed, then verified; or read as they arrive.

Contract: the file lies under its name only after its size and its hash (SHA-256, or git's own for a small file) equal
those of the hub's index. A broken connection is taken up again, and a broken download goes on where it stopped when the
command is run again: its beginning lies under a name that holds the hash, so that it is never joined with the rest of
another version. The revision is looked up once, and everything is asked of that one. No network, a missing library, an
unknown name or a wrong checksum is a ``UserError`` of one line.

Nothing here needs an account, so no token is sent, neither to the hub nor to where it redirects (http.py).

Known weakness: the hubs' libraries follow redirects of the index by their own rules, and modelscope sends the cookie of
a login to its hub; it names no commit, so there the revision stays "master". Names are those of MiniMind's
dataset/dataset.md of August 2026 and of its READMEs before; what upstream has renamed or taken away is said, with where
else it was.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.files import append_to, free_name, open_inside
from minimind.base.secrets import mask_text
from minimind.data.http import BLOCK, check_address, read_blocks
from minimind.data.read.remote import Remote

_TODAY = ("pretrain_t2t_mini", "pretrain_t2t", "sft_t2t_mini", "sft_t2t", "dpo", "rlaif", "agent_rl", "agent_rl_math")
_BEFORE: Mapping[str, str | None] = {  # names of 2025, and what took their place
    "pretrain_hq": "pretrain_t2t_mini",
    "sft_mini_512": "sft_t2t_mini",
    "sft_512": "sft_t2t",
    "sft_1024": "sft_t2t",
    "sft_2048": "sft_t2t",
    "r1_mix_1024": "sft_t2t",
    "rlaif-mini": "rlaif",
    "lora_identity": None,
    "lora_medical": None,
}
DATASETS: Mapping[str, str] = {name: f"{name}.jsonl" for name in (*_TODAY, *_BEFORE)}
# A commit on Hugging Face whose tree, as stored in February 2025, lists these
_HELD = "9f9f5d75020d4e36f9af87d303a3690ceba6d5c6"
_HELD_THERE = ("pretrain_hq", "sft_mini_512", "lora_identity", "lora_medical")
HUBS = ("huggingface", "modelscope")
_LIBRARIES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
_REPOSITORIES = {"huggingface": "jingyaogong/minimind_dataset", "modelscope": "gongjy/minimind_dataset"}
_SAY_SECONDS = 10.0


class Entry(NamedTuple):
    """What a hub's index says of a file: its size in bytes, and a hash (``sha256``, or git's ``blob``) of it."""

    size: int
    kind: str
    digest: str


@dataclass(frozen=True)
class _Hub:
    """What a hub's library does for us, of one revision: a file's entry if it is there, all names, an address."""

    revision: str
    entry: Callable[[str], Entry | None]
    names: Callable[[], list[str]]
    url: Callable[[str], str]


def fetch(
    name: str, output: Path, hub: str | None = None, endpoint: str | None = None, revision: str | None = None
) -> Path:
    """Download one data set into the directory ``output``; the file's path. A file that is there and right is kept.

    ``hub`` None: the first whose library is installed. ``endpoint``: another address of the hub, such as a mirror
    (Hugging Face's may stand in HF_ENDPOINT). ``revision``: a commit or branch; None is the newest.
    """
    with _found(name, hub, endpoint, revision) as (file, entry, url):
        target = output / file
        if not (target.is_file() and not target.is_symlink() and _is(target, entry)):
            output.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.{entry.digest[:12]}.partial")
            _download(url, partial, entry)
            if not _is(partial, entry):
                partial.unlink()
                raise UserError(f"{file}: the download is damaged (not {entry.kind} {entry.digest[:12]}); run it again")
            _publish(partial, target)
            for stale in output.glob(f"{target.name}.{'[0-9a-f]' * 12}.partial"):  # of other versions
                stale.unlink()
    return target


def remote(name: str, hub: str | None = None, endpoint: str | None = None, revision: str | None = None) -> Remote:
    """The data set as a file that `prepare` reads while it arrives. Raises UserError as ``fetch``."""
    with _found(name, hub, endpoint, revision) as (file, entry, url):
        if entry.kind != "sha256":
            raise UserError(f"{file}: of {entry.size:,} bytes, too small for --stream: fetch it without")
        return Remote(file, url, entry.size, entry.digest)


@contextmanager
def _found(name: str, hub: str | None, endpoint: str | None, revision: str | None) -> Iterator[tuple[str, Entry, str]]:
    """File name, entry and address of a data set; errors of libraries and network within become one line."""
    if name not in DATASETS:
        raise UserError(f"{name}: no such data set; one of {', '.join(DATASETS)}")
    file, hub = DATASETS[name], _chosen(hub)
    address = _address(hub, endpoint)
    check_address(address)
    with _explained(hub, file):
        library = (_hugging_face if hub == "huggingface" else _modelscope)(address, revision)
        entry = library.entry(file)
        if entry is None:
            raise UserError(_gone(name, hub, library))
        complain(f"{file}: {entry.size:,} bytes, revision {library.revision} of {_REPOSITORIES[hub]}")
        yield file, entry, library.url(file)


def _gone(name: str, hub: str, library: _Hub) -> str:
    """What the repository holds instead of a file, and where else that was."""
    there = ", ".join(sorted(library.names())) or "nothing"
    other = HUBS[1 - HUBS.index(hub)]
    places = [f"--hub {other} may have it"]
    if (successor := _BEFORE.get(name)) is not None:
        places.insert(0, f"today's is {successor}")
    if name in _HELD_THERE and library.revision != _HELD:
        places.append(f"--hub huggingface --revision {_HELD} held it in 2025")
    return (
        f"{DATASETS[name]}: not in {_REPOSITORIES[hub]} any more (revision {library.revision}); it holds {there}; "
        f"{'; '.join(places)}"
    )


def _download(url: str, partial: Path, entry: Entry) -> None:
    """The file into ``partial``, from the byte where an earlier run stopped.

    Our own lines, for both hubs, because huggingface_hub (2.4) gives each run's partial file a new name and so begins
    again.
    """
    said = time.monotonic()
    with append_to(partial) as file:
        have = os.fstat(file.fileno()).st_size
        if have > entry.size:
            file.truncate(0)
            have = 0
        for block in read_blocks(url, have, entry.size):
            file.write(block)
            have += len(block)
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                complain(f"{partial.name}: {have:,} of {entry.size:,} bytes ({have / entry.size:.0%})")


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


def _hugging_face(address: str, revision: str | None) -> _Hub:
    from huggingface_hub import HfApi, hf_hub_url

    repository = _REPOSITORIES["huggingface"]
    hub = HfApi(endpoint=address, token=False)  # False: not even the token of HF_TOKEN or of a login
    commit = hub.dataset_info(repository, revision=revision).sha or revision or "main"

    def entry(file: str) -> Entry | None:
        found = hub.get_paths_info(repository, file, repo_type="dataset", revision=commit)
        for one in found:
            if getattr(one, "size", None) is not None:
                return Entry(one.size, "sha256", one.lfs.sha256) if one.lfs else Entry(one.size, "blob", one.blob_id)
        return None

    def names() -> list[str]:
        return [one.path for one in hub.list_repo_tree(repository, repo_type="dataset", revision=commit)]

    def url(file: str) -> str:
        return str(hf_hub_url(repository, file, repo_type="dataset", revision=commit, endpoint=address))

    return _Hub(commit, entry, names, url)


def _modelscope(address: str, revision: str | None) -> _Hub:
    from modelscope.hub.api import HubApi

    repository, wanted = _REPOSITORIES["modelscope"], revision or "master"

    def index() -> dict[str, Entry]:
        files = HubApi(endpoint=address).get_dataset_files(repository, revision=wanted)
        return {each["Path"]: Entry(each["Size"], "sha256", each["Sha256"]) for each in files if each.get("Sha256")}

    def url(file: str) -> str:
        # The address that modelscope 1.40 itself downloads from, seen at the stand-in server.
        query = urllib.parse.urlencode({"Revision": wanted, "FilePath": file})
        return f"{address}/api/v1/datasets/{repository}/repo?{query}"

    return _Hub(wanted, lambda file: index().get(file), lambda: list(index()), url)


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


def _is(file: Path, entry: Entry) -> bool:
    """Whether the file has the size and the hash of the index. git hashes a small file after a line with its size."""
    digest = hashlib.sha256() if entry.kind == "sha256" else hashlib.sha1(b"blob %d\0" % entry.size)
    with open_inside(file.parent, file.name) as stream:
        if os.fstat(stream.fileno()).st_size != entry.size:
            return False
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == entry.digest
