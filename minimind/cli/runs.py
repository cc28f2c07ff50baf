"""Commands around a run: the demo, what to look at before it starts, its launch and what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minimind.base.defaults import USUAL_MFU
from minimind.base.display import say
from minimind.cli.options import Set, Strict
from minimind.cli.root import app, end


@app.command()
def demo(
    directory: Annotated[Path, typer.Option(help="where the corpus and both runs go")] = Path("runs/demo"),
) -> None:
    """From nothing to a chatting model on the built-in corpus, in minutes, on a CPU."""
    from minimind.commands.demo import run_demo

    end(run_demo(directory))


@app.command()
def plan(
    deepspeed_config: Annotated[
        Path | None,
        typer.Option("--deepspeed_config", "--deepspeed-config", help="DeepSpeed JSON; default: the YAML's"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML of the run")] = None,
    device_memory: Annotated[str | None, typer.Option(help="24GiB; default: this machine's device")] = None,
    num_gpus: Annotated[int, typer.Option(min=1, help="ranks")] = 1,
    tokens: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="to train on, such as 330M; default: the run's, if known")
    ] = None,
    mfu: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="share of a card's peak that its hours assume")
    ] = USUAL_MFU,
    measure: Annotated[bool, typer.Option("--measure", help="measure this machine, for about ten seconds")] = False,
    strict: Strict = False,
    overrides: Set = [],  # noqa: B006 (typer copies it)
) -> None:
    """Memory, steps and time of a run before it starts, here and on usual cards. Exit code 1 if it would not fit."""
    from minimind.commands.plan import Table, parse_tokens, run_plan

    table = Table(None if tokens is None else parse_tokens(tokens), mfu, measure)
    end(run_plan(deepspeed_config, config, overrides, device_memory, num_gpus, strict=strict, wanted=table))


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
    hostfile: Annotated[
        Path | None, typer.Option(help="ask all hosts of this file too, over ssh, and show them side by side")
    ] = None,
    strict: Strict = False,
) -> None:
    """Check versions, accelerator, compiler, disk, and a configuration. Exit code 1 if something is missing."""
    import shlex

    from minimind.commands.doctor import run_doctor

    end(
        run_doctor(
            deepspeed_config,
            config,
            overrides,
            num_gpus=num_gpus,
            output_dir=output_dir,
            words=shlex.split(launch),
            strict=strict,
            hostfile=hostfile,
        )
    )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def launch(context: typer.Context) -> None:
    """The deepspeed command with the same words after it; stops and exit codes can be relied upon (docs/signals.md)."""
    if context.args in ([], ["--help"], ["-h"]):  # words after a script are its own, --help too
        say(context.get_help())
        return
    from minimind.commands.launch import launch as supervise

    end(supervise(context.args))


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
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run directories")],
    output: Annotated[Path | None, typer.Option(help="default: RUN/report.html")] = None,
) -> None:
    """One HTML page with the curves, findings and settings of a run, or of several side by side."""
    from minimind.commands.report import write_report

    say(write_report(runs, output))


@app.command()
def watch(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run directories, also before their first step")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 8050,
) -> None:
    """The report's page, live: curves that grow while a run goes on, on this machine only, until Ctrl-C."""
    from minimind.commands.watch import watch as serve_page

    serve_page(runs, port)
