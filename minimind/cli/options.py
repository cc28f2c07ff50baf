"""The options and arguments that commands share, and those that say how files are read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from minimind.base.defaults import Reasoning
from minimind.data.records.options import ReadingOptions
from minimind.inference.sampling import Sampling

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="files, directories or globs; - is stdin")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="run, checkpoint, exported or Hugging Face directory, .pth")
]
ModelTokenizer = Annotated[
    Path | None, typer.Option(help="directory, .model or tokenizer.json file; default: beside the model")
]
TokenizerOption = Annotated[Path, typer.Option(help="tokenizer directory or .model file")]
RowLength = Annotated[int, typer.Option(min=2, help="tokens in a row")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Strict = Annotated[bool, typer.Option("--strict", help="a key of the JSON that is not used is an error")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a setting of the YAML")]
Seed = Annotated[int, typer.Option(help="seed of the random numbers")]

# Names are those of ReadingOptions, where their defaults are, too.
_LIMITS: dict[str, Any] = {
    "skip_bad": Annotated[bool, typer.Option("--skip-bad", help="leave bad lines out, up to a limit")],
    "max_bad_ratio": Annotated[float, typer.Option(min=0.0, max=1.0, help="that limit")],
}
_READING: dict[str, Any] = {
    "format": Annotated[
        str | None, typer.Option(metavar="NAME", help="text, conversations, ...: docs/data.md; default: by content")
    ],
    "text_field": Annotated[str | None, typer.Option(metavar="FIELD", help="the field that holds the text")],
    "map": Annotated[
        str | None, typer.Option(metavar="NAME=FIELD,...", help="such as prompt=question,answer=solution")
    ],
    "encoding": Annotated[str | None, typer.Option(metavar="NAME", help="such as gb18030; default: by content")],
    "allow_special": Annotated[
        bool, typer.Option("--allow-special", help="texts were written with <|im_start|> and <|im_end|>, or <s>")
    ],
    "reasoning": Annotated[Reasoning, typer.Option(help="of answers that bring their reasoning: train it, or drop it")],
}

# Of `Sampling`, likewise
_SAMPLING: dict[str, Any] = {
    "max_new_tokens": Annotated[int, typer.Option(min=1, help="tokens to generate at most")],
    "temperature": Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token")],
    "top_p": Annotated[float, typer.Option(min=0.0, max=1.0, help="sample from the likeliest tokens of this total")],
    "top_k": Annotated[int, typer.Option(min=0, help="sample from this many likeliest tokens; 0: all")],
    "seed": Seed,
}

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def reads_files(limits: bool = True) -> Decorator:
    """For a command with the parameter ``reading``: in its place the options that say how files are read."""
    return _in_place_of("reading", {**_LIMITS, **_READING} if limits else _READING, ReadingOptions())


def samples_tokens(usual: Sampling) -> Decorator:
    """For a command with the parameter ``sampling``: in its place the options of how tokens are chosen."""
    return _in_place_of("sampling", _SAMPLING, usual)


def _in_place_of(parameter: str, options: dict[str, Any], usual: Any) -> Decorator:
    """Declare ``options`` (name -> annotation) instead of ``parameter``, which gets a value of the type of ``usual``,
    whose fields are their defaults."""

    def declared(own: inspect.Parameter) -> list[inspect.Parameter]:
        if own.name != parameter:
            return [own]
        return [own.replace(name=name, annotation=kind, default=getattr(usual, name)) for name, kind in options.items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            value = type(usual)(**{name: given.pop(name) for name in options})
            command(**given, **{parameter: value})

        signature = inspect.signature(command, eval_str=True)
        parameters = [new for own in signature.parameters.values() for new in declared(own)]
        vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
        return with_options

    return decorate
