"""Commands on data: built in, downloaded, checked, tokenised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minimind.base.defaults import ROW_LENGTH, VOCABULARY, Kind
from minimind.base.display import console, say
from minimind.cli.options import AsJson, Files, RowLength, Seed, TokenizerOption, reads_files
from minimind.cli.root import app, end, show_json
from minimind.data.records.options import ReadingOptions


@app.command("demo-data")
def demo_data(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="made if it is not there")], seed: Seed = 0
) -> None:
    """Write the built-in corpus: pretrain.jsonl, sft.jsonl, eval.jsonl, sft_eval.jsonl, floor.json."""
    from minimind.corpus.corpus import write_demo

    write_demo(directory, seed=seed)
    say(directory)


@app.command("train-tokenizer")
@reads_files()
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
@reads_files()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="pretrain_t2t_mini, sft_t2t_mini, ...: docs/data.md")],
    output: Annotated[Path, typer.Option(help="directory to download into; with --stream that of the store")],
    hub: Annotated[str | None, typer.Option(help="huggingface or modelscope; default: what is installed")] = None,
    endpoint: Annotated[str | None, typer.Option(help="address of a mirror; default: HF_ENDPOINT's")] = None,
    revision: Annotated[str | None, typer.Option(help="commit or branch on the hub; default: the newest")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="tokenise while it arrives, and keep no copy")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="for --stream: tokenizer directory or file")] = None,
    kind: Annotated[Kind | None, typer.Option(help="for --stream; default: by the first record")] = None,
    max_seq_length: RowLength = ROW_LENGTH,
    *,
    reading: ReadingOptions,
) -> None:
    """Download one of MiniMind's own data sets, or read it into a store (--stream, and how to read it)."""
    from minimind.commands import streaming
    from minimind.data import fetch as fetching

    wanted = streaming.Streaming(tokenizer, kind, max_seq_length, reading)
    if stream:
        say(streaming.stream(fetching.remote(name, hub, endpoint, revision), output, wanted))
        return
    streaming.refuse_without(wanted)
    say(fetching.fetch(name, output, hub, endpoint, revision))


@app.command()
@reads_files(limits=False)
def check(
    files: Files,
    tokenizer: Annotated[Path | None, typer.Option(help="count tokens with this tokenizer too")] = None,
    kind: Annotated[Kind | None, typer.Option(help="default: by the first record of each file")] = None,
    max_seq_length: RowLength = ROW_LENGTH,
    *,
    reading: ReadingOptions,
    as_json: AsJson = False,
) -> None:
    """What is in FILE, and each bad line as file:line: reason. Exit code 1 if there is one."""
    from minimind.data.check.check import check_files
    from minimind.data.check.view import show
    from minimind.text.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer) if tokenizer else None
    report = check_files(files, loaded, kind, max_seq_length, reading=reading)
    show_json(report.to_json()) if as_json else show(report, console())
    end(0 if report.ok else 1)


@app.command()
@reads_files()
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

    loaded = Tokenizer.load(tokenizer)
    say(preparing.prepare(files, loaded, output, kind, max_seq_length, reading=reading, workers=workers))
