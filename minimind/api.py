"""The Python interface: ``minimind.load``, ``minimind.train`` and ``minimind.read``. Nothing else is public.

    import minimind

    run = minimind.train("pretrain", {"train_file": ["text.jsonl"], "max_steps": 200}, "ds_configs/fp32.json") model =
    minimind.load(run) print(model.generate("The sea"), model.chat("Who are you?"))

``import minimind`` loads nothing heavy: torch comes with the first call. What a person can mend (a wrong path, a bad
line, a setting) is raised as ``minimind.base.errors.UserError``, whose text is the one line that the commands print.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.errors import UserError

if TYPE_CHECKING:
    import torch

    from minimind.data.records.conversations import Conversation, Kind
    from minimind.inference.sampling import Sampling
    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer

__all__ = ["load", "read", "train"]

Message = Mapping[str, str]
"""One turn as OpenAI writes it: ``{"role": "user", "content": "..."}``."""


@dataclass(frozen=True)
class Document:
    """One record of a file as the trainer reads it: pretraining ``text``, or a conversation's ``turns``; the other is
    None. ``line``: 1-based, of the record's first line."""

    file: str
    line: int
    text: str | None = None
    turns: tuple[Message, ...] | None = None


class Model:
    """A trained model with its tokenizer. Made by `load`."""

    def __init__(self, transformer: Transformer, tokenizer: Tokenizer) -> None:
        self.transformer, self.tokenizer = transformer, tokenizer

    def generate(self, prompt: str, **sampling: Any) -> str:
        """What follows ``prompt``, without it. ``sampling``: fields of `minimind.inference.sampling.Sampling`, with its
        defaults. Raises UserError for a prompt that is too long and for impossible settings."""
        return "".join(self.stream(prompt, **sampling))

    def stream(self, prompt: str, **sampling: Any) -> Iterator[str]:
        """As `generate`, in pieces of whole characters while they are made."""
        ids = [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)]
        return self._pieces(ids, [self.tokenizer.eos_id], _sampling(sampling))

    def chat(self, messages: str | Sequence[Message], **sampling: Any) -> str:
        """The answer to a question, or to a conversation that ends with one (``{"role", "content"}`` mappings)."""
        from minimind.text.chat import Turn, prompt_ids

        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        try:
            turns = [Turn(message["role"], message["content"]) for message in messages]  # type: ignore[arg-type]
        except (KeyError, ValueError) as error:
            raise UserError(f"a message needs a known role and a content: {error}") from None
        if not turns or turns[-1].role == "assistant":
            raise UserError("a conversation ends with the question to answer")
        stops = self.tokenizer.stop_ids
        return "".join(self._pieces(prompt_ids(turns, self.tokenizer), stops, _sampling(sampling)))

    def _pieces(self, ids: list[int], stops: list[int], sampling: Sampling) -> Iterator[str]:
        from minimind.inference.answers import Question
        from minimind.inference.batching import pieces

        return (piece.text for piece in pieces(self.transformer, self.tokenizer, Question(ids, sampling, stops)))


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    from minimind.inference.sampling import Sampling

    return Sampling(**_known(settings, Sampling.__dataclass_fields__, "generation"))


def _known(settings: Mapping[str, Any], names: Collection[str], what: str) -> Mapping[str, Any]:
    """The same settings. Raises UserError for one that is not among ``names``."""
    if unknown := settings.keys() - set(names):
        raise UserError(f"{', '.join(sorted(unknown))}: no setting of {what}; it takes {', '.join(names)}")
    return settings


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: str | Path | None = None,
) -> Model:
    """The model that ``path`` names: a run, a checkpoint, an exported directory or a MiniMind .pth.

    ``device`` None: the GPU if there is one. ``dtype`` None: as saved, fp32 on a CPU. Raises UserError when there is no
    model, when it is damaged, or when its tokenizer is missing or does not fit.
    """
    import torch

    from minimind.inference.loading import load_model

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Model(*load_model(path, where, dtype, tokenizer))


def train(
    kind: Kind,
    config: str | Path | Mapping[str, Any] | None,
    deepspeed_config: str | Path,
    model: str | Path | None = None,
    resume: bool = False,
) -> Path:
    """Train in this process, as `launch/pretrain.py` or `launch/sft.py` would (``kind``); the run directory.

    ``config``: a YAML file, or its settings by name. ``model``: what to start from (SFT needs one). A Ctrl-C finishes
    the step and saves, as under a launcher. For several ranks use the launch scripts. Raises UserError for what the
    command would refuse, RuntimeError for a run that failed (its post_mortem.json tells why).
    """
    from minimind.config.run import load_run_config
    from minimind.training.process.signals import StopRequest
    from minimind.training.run.arguments import parse
    from minimind.training.run.main import run

    words = ["--deepspeed_config", str(deepspeed_config), *(["--resume"] if resume else [])]
    words += ["--model", str(model)] if model is not None else []
    if isinstance(config, Mapping):  # JSON is YAML
        words += [
            word for name, value in config.items() for word in ("--set", f"{name}={json.dumps(value, default=str)}")
        ]
    elif config is not None:
        words += ["--config", str(config)]
    arguments = parse(kind, words)
    output = load_run_config(arguments.config, arguments.set).output_dir
    with _handlers_put_back():
        code = run(kind, arguments, StopRequest().install())
    if code != 0:
        raise RuntimeError(f"{output}: the run failed; its last lines and post_mortem.json say why")
    return output


@contextmanager
def _handlers_put_back() -> Iterator[None]:
    """A run takes SIGINT, SIGTERM and SIGHUP over; the caller has them again afterwards."""
    from minimind.training.process.signals import HANDLED

    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read(files: str | Path | Sequence[str | Path], kind: Kind | None = None, **reading: Any) -> Iterator[Document]:
    """Every document in ``files`` (files, directories, globs), in order and one at a time, as the trainer reads them.

    ``kind`` None takes texts and conversations. ``reading``: ``format``, ``text_field``, ``map``, ``encoding`` and
    ``reasoning`` as on the command line. Raises UserError with file:line and the reason at the first record that can't
    be used.
    """
    import tempfile

    from minimind.data.read.sources import expand, read_chunks
    from minimind.data.records.encoding import Reject, document_of
    from minimind.data.records.options import READING, ReadingOptions

    options = ReadingOptions(**_known(reading, [name for name in READING if name != "allow_special"], "reading"))
    paths = [files] if isinstance(files, (str, Path)) else list(files)
    with tempfile.TemporaryDirectory() as spool:
        for source in expand(paths, Path(spool))[0]:
            for chunk in read_chunks(source, options.format, options.encoding, options.fields.columns):
                for record in chunk.records():
                    found = document_of(record, kind, options.fields)
                    if isinstance(found, Reject):
                        raise UserError(str(found))
                    yield _document(record.file, record.line, found)


def _document(file: str, line: int, found: str | Conversation) -> Document:
    if isinstance(found, str):
        return Document(file, line, text=found)
    turns = tuple({"role": turn.role, "content": turn.content} for turn in found.turns)
    return Document(file, line, turns=turns)
