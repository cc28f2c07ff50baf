"""What `minimind check` says of files: the numbers, as the terminal and the JSON have them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from minimind.data.check.overlap import Shared
from minimind.data.records.conversations import Kind


@dataclass
class FileReport:
    """One file. Token figures are None without a tokenizer; ``bad`` lists the first 1,000 of ``rejected``.

    ``answers_lost`` counts conversations without an answer that fits a row; they are rejected, but are no bad lines.
    """

    path: str
    error: str | None = None
    container: str = ""
    compression: str | None = None
    encoding: str = ""
    encoding_confidence: float = 1.0
    kind: Kind = "pretrain"
    formats: dict[str, int] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)
    records: int = 0
    used: int = 0
    rejected: int = 0
    bad: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    fields_not_read: dict[str, dict[str, object]] = field(default_factory=dict)
    reasoning_dropped: int = 0
    characters: int = 0
    characters_per_document: dict[str, int] = field(default_factory=dict)
    turns_per_document: dict[str, int] = field(default_factory=dict)
    scripts: dict[str, float] = field(default_factory=dict)
    exact_duplicates: int = 0
    near_duplicates: int = 0
    near_compared: int = 0
    trimmed: int = 0
    answers_lost: int = 0
    tokens: int | None = None
    tokens_per_document: dict[str, int] | None = None
    trainable_share: float | None = None
    characters_per_token: float | None = None
    longer_than_row: int | None = None
    truncated: int | None = None
    answers_cut: int | None = None
    row_fill: float | None = None
    sample: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.error is None and self.rejected == self.answers_lost


@dataclass
class CheckReport:
    """All files. ``ok`` is False when a file is unreadable or any record is not used; documents that files share are
    listed and are no fault by themselves.
    """

    files: list[FileReport]
    max_seq_length: int
    ignored: list[str]
    shared: list[Shared] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.files)

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``; the names are those of `FileReport`."""
        return {
            "ok": self.ok,
            "max_seq_length": self.max_seq_length,
            "ignored": self.ignored,
            "shared": [asdict(shared) for shared in self.shared],
            "files": [asdict(report) for report in self.files],
        }
