"""Commands on a model: measured, asked, served, written for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minimind.base.defaults import (
    CHAT_TEMPERATURE,
    CHAT_TOKENS,
    CHAT_TOP_P,
    ROW_LENGTH,
    Context,
    GgufDtype,
    Kind,
)
from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.cli.options import AsJson, Model, ModelTokenizer, RowLength, reads_files, samples_tokens
from minimind.cli.root import app, show_json, show_table
from minimind.data.records.options import ReadingOptions
from minimind.inference.sampling import Sampling


@app.command()
@reads_files()
def evaluate(
    model: Model,
    file: Annotated[list[Path], typer.Option(help="held-out file; may be given again")] = [],  # noqa: B006
    task: Annotated[
        list[Path], typer.Option(metavar="FILE", help="multiple choice: C-Eval, CMMLU, ARC, HellaSwag or own JSONL")
    ] = [],  # noqa: B006 (typer copies it)
    shots: Annotated[int, typer.Option(min=0, help="of --task: answered examples before each question")] = 0,
    examples: Annotated[list[Path], typer.Option(metavar="FILE", help="of --shots: where those come from")] = [],  # noqa: B006
    items: Annotated[Path | None, typer.Option(metavar="FILE", help="of --task: each question's numbers")] = None,
    kind: Annotated[Kind | None, typer.Option(help="default: by the first record")] = None,
    max_seq_length: RowLength = ROW_LENGTH,
    batch_size: Annotated[int, typer.Option(min=1, help="rows at a time; the result does not depend on it")] = 8,
    *,
    reading: ReadingOptions,
    as_json: AsJson = False,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Held-out loss, perplexity and bits per byte; or multiple choice (docs/evaluation.md)."""
    if bool(file) == bool(task) or ((items or shots or examples) and not task):
        raise UserError("give --file FILE for held-out loss, or --task FILE for multiple choice (--items is for that)")
    if bool(shots) != bool(examples):
        raise UserError("--shots N and --examples FILE go together: how many examples, and out of which file")
    if task:
        from minimind.commands.choices import evaluate_tasks

        scores = evaluate_tasks(
            model, task, reading=reading, tokenizer_path=tokenizer, items=items, shots=shots, examples=examples
        )
        _show_scores(scores, as_json)
        return
    from minimind.commands.models import evaluate_file

    result = evaluate_file(model, file, kind, max_seq_length, batch_size, reading=reading, tokenizer_path=tokenizer)
    show_json(result) if as_json else show_table(result)


def _show_scores(result: dict[str, Any], as_json: bool) -> None:
    from minimind.inference.choices.scores import table

    if as_json:
        show_json(result)
        return
    for line in table(result["subjects"], result):
        say(line)
    if result["cut"]:
        say(f"{result['cut']:,} contexts are longer than the model's positions: they lost their beginning")


@app.command()
@samples_tokens(Sampling())
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="text to go on from, printed as it is made")] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="many: one a line, or JSONL of prompt or messages")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="of --prompts: their answers")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="--prompts are questions, not texts to go on from")] = False,
    *,
    sampling: Sampling,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Go on from a text, or from each of a file (docs/chat.md)."""
    from minimind.inference.terminal.files import answer_file
    from minimind.inference.terminal.text import continue_text

    if prompts is not None and output is not None and prompt is None:
        count = answer_file(model, prompts, output, sampling, chat=chat, tokenizer_path=tokenizer)
        say(f"{count:,} answers -> {output}")
    elif prompt is not None and prompts is None and output is None and not chat:
        continue_text(model, prompt, sampling, tokenizer_path=tokenizer)
    else:
        raise UserError("give --prompt TEXT, or --prompts FILE and --output FILE, with --chat if they are questions")


@app.command()
@samples_tokens(Sampling(CHAT_TOKENS, CHAT_TEMPERATURE, CHAT_TOP_P))
def chat(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="one question: print its answer, and nothing else")] = None,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    *,
    sampling: Sampling,
    tokenizer: ModelTokenizer = None,
) -> None:
    """Talk with a model: /help lists what else can be typed, Ctrl-D ends, Ctrl-C stops an answer (docs/chat.md)."""
    from minimind.inference.terminal.chat import ask_once, chat_loop

    if prompt is not None:
        ask_once(model, system, prompt, sampling, tokenizer_path=tokenizer)
    else:
        chat_loop(model, system, sampling, tokenizer_path=tokenizer)


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
    context: Annotated[
        Context, typer.Option(help="a conversation that is too long: refused, or its oldest turns dropped")
    ] = "error",
    tokenizer: ModelTokenizer = None,
) -> None:
    """Serve a model over OpenAI's HTTP interface, with a chat page, until Ctrl-C (docs/serving.md)."""
    from minimind.inference.server import serve as serve_model

    serve_model(model, host, port, api_key, max_body, tokenizer=tokenizer, context=context)


@app.command()
def export(
    model: Model,
    output: Annotated[Path, typer.Option(help="directory; for pth and gguf also a file name")],
    format: Annotated[
        str, typer.Option(metavar="hf|pth|gguf", help="hf: Hugging Face; pth: MiniMind's own; gguf: llama.cpp")
    ] = "hf",
    dtype: Annotated[
        GgufDtype | None, typer.Option(help="of the weights; default: f16 in a gguf, the model's own in hf")
    ] = None,
    tokenizer: ModelTokenizer = None,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="of the weights, for hf's model card: apache-2.0")
    ] = None,
) -> None:
    """Write a model for other programs."""
    from minimind.commands.models import export_model

    say(export_model(model, output, format, dtype, tokenizer, licence=licence))
