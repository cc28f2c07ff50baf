"""The `minimind` command: one function a command, which imports what it needs and calls it.

Contract. Exit code 0: done. 1: done, and what was found is bad. 2: used wrongly; one line on stderr says what to do
(`--debug`, anywhere on the line, shows the traceback instead). Nothing heavy is imported before a command runs, so
that `minimind --help` answers at once.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from minimind.base.defaults import (
    CHAT_TEMPERATURE,
    CHAT_TOKENS,
    CHAT_TOP_P,
    ROW_LENGTH,
    TEXT_TEMPERATURE,
    TEXT_TOKENS,
    TEXT_TOP_P,
    VOCABULARY,
    GgufDtype,
    Kind,
    Reasoning,
)
from minimind.base.display import complain, console, say, show_tracebacks
from minimind.base.errors import UserError
from minimind.data.records.options import ReadingOptions

app = typer.Typer(
    name="minimind",
    help="Train MiniMind from raw text to chat with DeepSpeed. Training itself: deepspeed launch/pretrain.py --help",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="files, directories or globs; - is stdin")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="run, checkpoint, exported or Hugging Face directory, .pth")
]
ModelTokenizer = Annotated[
    Path | None, typer.Option(help="directory, .model or tokenizer.json file; default: beside the model")
]
TokenizerOption = Annotated[Path, typer.Option(help="tokenizer directory or .model file")]
RowLength = Annotated[int, typer.Option(min=2, help="tokens in a row")]
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
Strict = Annotated[bool, typer.Option("--strict", help="a key of the JSON that is not used is an error")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a setting of the YAML")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="sample from the likeliest tokens of this total")]
TopK = Annotated[int, typer.Option(min=0, help="sample from this many likeliest tokens; 0: all")]
NewTokens = Annotated[int, typer.Option(min=1, help="tokens to generate at most")]
Seed = Annotated[int, typer.Option(help="seed of the random numbers")]


def _reads_files(limits: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with the parameter ``reading``: in its place the options that say how files are read."""
    options = {**_LIMITS, **_READING} if limits else _READING

    def declared(own: inspect.Parameter) -> list[inspect.Parameter]:
        if own.name != "reading":
            return [own]
        of = ReadingOptions
        return [own.replace(name=name, annotation=kind, default=getattr(of, name)) for name, kind in options.items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            reading = ReadingOptions(**{name: given.pop(name) for name in options})
            command(**given, reading=reading)

        signature = inspect.signature(command, eval_str=True)
        parameters = [parameter for own in signature.parameters.values() for parameter in declared(own)]
        vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
        return with_options

    return decorate


def _print_version(wanted: bool) -> None:
    if wanted:
        from minimind import __version__

        say(f"minimind {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Only declares them: `main` looks for --debug, wherever it stands."""


@app.command()
def demo(
    directory: Annotated[Path, typer.Option(help="where the corpus and both runs go")] = Path("runs/demo"),
) -> None:
    """From nothing to a chatting model on the built-in corpus, in minutes, on a CPU."""
    from minimind.commands.demo import run_demo

    _exit(run_demo(directory))


@app.command("demo-data")
def demo_data(directory: Path, seed: Seed = 0) -> None:
    """Write the built-in corpus: pretrain.jsonl, sft.jsonl, eval.jsonl, sft_eval.jsonl, floor.json."""
    from minimind.corpus.corpus import write_demo

    write_demo(directory, seed=seed)
    say(directory)


@app.command("train-tokenizer")
@_reads_files()
def train_tokenizer(
    files: Files,
    output: Annotated[Path, typer.Option(help="directory, or file name ending in .model")],
    vocab_size: Annotated[int, typer.Option(min=300, help="number of pieces")] = VOCABULARY,
    *,
    reading: ReadingOptions,
) -> None:
    """Train a tokenizer on the texts and conversations in FILE."""
    from minimind.commands.models import train_tokenizer_on

    say(train_tokenizer_on(files, output, vocab_size, reading))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="pretrain_hq, sft_mini_512, ...")],
    output: Annotated[Path, typer.Option(help="directory to download into")],
    hub: Annotated[str | None, typer.Option(help="huggingface or modelscope; default: what is installed")] = None,
    endpoint: Annotated[str | None, typer.Option(help="address of a mirror")] = None,
) -> None:
    """Download one of MiniMind's own data sets."""
    from minimind.data import fetch as fetching

    say(fetching.fetch(name, output, hub, endpoint))


@app.command()
@_reads_files(limits=False)
def check(
    files: Files,
    tokenizer: Annotated[Path | None, typer.Option(help="count tokens with this tokenizer too")] = None,
    kind: Annotated[Kind | None, typer.Option(help="default: by the first record of each file")] = None,
    max_seq_length: RowLength = ROW_LENGTH,
    *,
    reading: ReadingOptions,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """What is in FILE, and each bad line as file:line: reason. Exit code 1 if there is one."""
    from minimind.data.check.check import check_files
    from minimind.data.check.view import show
    from minimind.text.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer) if tokenizer else None
    report = check_files(files, loaded, kind, max_seq_length, reading=reading)
    _show(report.to_json()) if as_json else show(report, console())
    _exit(0 if report.ok else 1)


@app.command()
@_reads_files()
def prepare(
    files: Files,
    tokenizer: TokenizerOption,
    output: Annotated[Path, typer.Option(help="directory of the store")],
    kind: Annotated[Kind, typer.Option(help="plain texts or conversations")] = "pretrain",
    max_seq_length: RowLength = ROW_LENGTH,
    *,
    reading: ReadingOptions,
    workers: Annotated[int | None, typer.Option(min=1, help="threads; default: the cores, eight at most")] = None,
) -> None:
    """Tokenise FILE into a store that the launch scripts take as --train-file."""
    from minimind.data.store import prepare as preparing
    from minimind.text.tokenizer import Tokenizer

    say(
        preparing.prepare(
            files,
            Tokenizer.load(tokenizer),
            output,
            kind,
            max_seq_length,
            reading=reading,
            workers=workers,
        )
    )


@app.command()
def plan(
    deepspeed_config: Annotated[
        Path | None,
        typer.Option("--deepspeed_config", "--deepspeed-config", help="DeepSpeed JSON; default: the YAML's"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML of the run")] = None,
    device_memory: Annotated[str | None, typer.Option(help="24GiB; default: this machine's device")] = None,
    num_gpus: Annotated[int, typer.Option(min=1, help="ranks")] = 1,
    strict: Strict = False,
    overrides: Set = [],  # noqa: B006 (typer copies it)
) -> None:
    """Memory, steps and time of a run before it starts. Exit code 1 if it would not fit."""
    from minimind.commands.plan import run_plan

    _exit(run_plan(deepspeed_config, config, overrides, device_memory, num_gpus, strict=strict))


@app.command()
def doctor(
    deepspeed_config: Annotated[
        Path | None, typer.Option("--deepspeed_config", "--deepspeed-config", help="check this DeepSpeed JSON too")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="and this YAML")] = None,
    overrides: Set = [],  # noqa: B006 (typer copies it)
    num_gpus: Annotated[int, typer.Option("--num_gpus", "--num-gpus", min=1, help="ranks")] = 1,
    output_dir: Annotated[Path, typer.Option(help="where runs will be written")] = Path("runs"),
    launch: Annotated[
        str, typer.Option(help='check these words of `minimind launch` too: "--include localhost:0,1"')
    ] = "",
    strict: Strict = False,
) -> None:
    """Check versions, accelerator, compiler, disk, and a configuration. Exit code 1 if something is missing."""
    import shlex

    from minimind.commands.doctor import run_doctor

    _exit(
        run_doctor(
            deepspeed_config,
            config,
            overrides,
            num_gpus=num_gpus,
            output_dir=output_dir,
            words=shlex.split(launch),
            strict=strict,
        )
    )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def launch(context: typer.Context) -> None:
    """The deepspeed command with the same words after it; stops and exit codes can be relied upon (docs/resume.md)."""
    if context.args in ([], ["--help"], ["-h"]):  # words after a script are its own, --help too
        say(context.get_help())
        return
    from minimind.commands.launch import launch as supervise

    _exit(supervise(context.args))


@app.command()
@_reads_files()
def evaluate(
    model: Model,
    file: Annotated[list[Path], typer.Option(help="held-out file; may be given again")],
    kind: Annotated[Kind | None, typer.Option(help="default: by the first record")] = None,
    max_seq_length: RowLength = ROW_LENGTH,
    batch_size: Annotated[int, typer.Option(min=1, help="rows at a time; the result does not depend on it")] = 8,
    *,
    reading: ReadingOptions,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Held-out loss, perplexity and bits per byte."""
    from minimind.commands.models import evaluate_file

    result = evaluate_file(model, file, kind, max_seq_length, batch_size, reading=reading, tokenizer_path=tokenizer)
    _show(result) if as_json else _table(result)


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Option(help="text to go on from")],
    max_new_tokens: NewTokens = TEXT_TOKENS,
    temperature: Temperature = TEXT_TEMPERATURE,
    top_p: TopP = TEXT_TOP_P,
    top_k: TopK = 0,
    seed: Seed = 0,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Go on from a text, printed as it is made."""
    from minimind.inference.sampling import Sampling
    from minimind.inference.terminal import continue_text

    sampling = Sampling(max_new_tokens, temperature, top_p, top_k, seed)
    continue_text(model, prompt, sampling, tokenizer_path=tokenizer)


@app.command()
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    max_new_tokens: NewTokens = CHAT_TOKENS,
    temperature: Temperature = CHAT_TEMPERATURE,
    top_p: TopP = CHAT_TOP_P,
    top_k: TopK = 0,
    seed: Seed = 0,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Talk with a model: /reset starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer."""
    from minimind.inference.sampling import Sampling
    from minimind.inference.terminal import chat_loop

    sampling = Sampling(max_new_tokens, temperature, top_p, top_k, seed)
    chat_loop(model, system, sampling, tokenizer_path=tokenizer)


@app.command()
def samples(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="run directory")],
    step: Annotated[int, typer.Option(min=1, help="optimizer step")],
) -> None:
    """Which lines of which files optimizer step N trained on."""
    from minimind.commands.models import samples_of_step

    for line in samples_of_step(run_dir, step):
        say(line)


@app.command()
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0: all of this machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one, printed")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="MINIMIND_API_KEY", help="ask for it as a Bearer token")
    ] = None,
    max_body: Annotated[
        int | None, typer.Option(min=1024, metavar="BYTES", help="of a request at most; default: 1 MiB")
    ] = None,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Serve a model over OpenAI's HTTP interface, with a chat page, until Ctrl-C (docs/serving.md)."""
    from minimind.inference.server import serve as serve_model

    serve_model(model, host, port, api_key, max_body, tokenizer=tokenizer)


@app.command()
def export(
    model: Model,
    output: Annotated[Path, typer.Option(help="directory; for pth and gguf also a file name")],
    format: Annotated[
        str, typer.Option(metavar="hf|pth|gguf", help="hf: Hugging Face; pth: MiniMind's own; gguf: llama.cpp")
    ] = "hf",
    dtype: Annotated[GgufDtype | None, typer.Option(help="of a gguf's weights; default: f16")] = None,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Write a model for other programs."""
    from minimind.commands.models import export_model

    say(export_model(model, output, format, dtype, tokenizer))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run directories")],
    output: Annotated[Path | None, typer.Option(help="default: RUN/report.html")] = None,
) -> None:
    """One HTML page with the curves, findings and settings of a run, or of several side by side."""
    from minimind.commands.report import write_report

    say(write_report(runs, output))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit; the console script calls it without arguments."""
    show_tracebacks()
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run([word for word in words if word != "--debug"], debug="--debug" in words))


def run(arguments: list[str], debug: bool = False) -> int:
    """Run one command; its exit code."""
    try:
        return int(app(arguments, prog_name="minimind", standalone_mode=False) or 0)
    except _USAGE_ERROR as error:
        # A bare `minimind` is answered with the help, not with an error.
        return _wrong(f"{error.format_message()} (minimind --help)" if arguments else "")
    except UserError as error:
        if debug:
            raise
        return _wrong(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `minimind check ... | head`
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            return _wrong(f"{error.filename}: {error.strerror}")
        return _wrong(f"{type(error).__name__}: {error} (a bug, or a machine in trouble: --debug shows where)", 1)


# typer's own copy of click since 0.27, click itself before: the base of all errors in the command line.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]


def _wrong(message: str, code: int = 2) -> int:
    if message:
        complain("error: " + " ".join(message.split()))
    return code


def _exit(code: int) -> None:
    raise typer.Exit(code)


def _show(value: object) -> None:
    import json

    say(json.dumps(value, ensure_ascii=False, indent=2))


def _table(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        say(f"{name:<16}{value}")


if __name__ == "__main__":
    main()
