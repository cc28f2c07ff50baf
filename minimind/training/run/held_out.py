"""What is wrong with the held-out file before the run begins: documents that are trained on too."""

from __future__ import annotations

from minimind.base.command_lines import typed
from minimind.base.findings import Finding
from minimind.config.run import RunConfig
from minimind.data.records.options import ReadingOptions
from minimind.data.store.files import MANIFEST
from minimind.data.store.store import TokenStore
from minimind.training.run.setup import Data


def held_out_findings(data: Data, config: RunConfig) -> list[Finding]:
    """The finding that held-out documents are also training documents, with their number and share."""
    overlap = data.overlap
    if overlap is None or overlap.first is None or data.held_out is None:
        return []
    held, trained = overlap.first
    pair = f"{_place(data.held_out, held)} and {_place(data.train, trained)}"
    number = f"all {overlap.documents:,}" if overlap.share == 1 else f"{overlap.shared:,} of {overlap.documents:,}"
    same = _same_files(data.train, data.held_out)
    return [
        Finding(
            "held-out-in-training",
            f"{number} held-out documents ({overlap.share:.1%}) are also training documents: the first equal ones are "
            f"{pair}" + (f"; the same content: {', '.join(same)}" if same else ""),
            "held-out loss measures memory there: give other documents as --eval-file" + _check(config),
            values={"shared": overlap.shared, "documents": overlap.documents, "share": overlap.share},
        )
    ]


def _place(store: TokenStore, document: int) -> str:
    name, line = store.source(document)
    return f"{name}:{line}"


def _same_files(train: TokenStore, held_out: TokenStore) -> list[str]:
    """Held-out files whose bytes are a training file's."""
    trained = {source["sha256"]: source["path"] for source in train.manifest["sources"] if "sha256" in source}
    held = [source for source in held_out.manifest["sources"] if source.get("sha256") in trained]
    return [f"{source['path']} and {trained[source['sha256']]}" for source in held]


def _check(config: RunConfig) -> str:
    """The command that counts them by file; none for finished stores and pipes, which it can't read."""
    files = [*config.train_paths, *config.eval_file]
    if not config.train_file or any((path / MANIFEST).is_file() or not path.exists() for path in files):
        return ""
    return f"; by file: {typed('minimind', 'check', *files, *ReadingOptions.of(config).words())}"
