"""The options that the launch scripts share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from minimind.data.conversations import Kind

# Options that are fields of RunConfig; each is None unless given, so that the YAML's value stands.
_CONFIG_OPTIONS = (
    "train_file",
    "eval_file",
    "tokenizer",
    "output_dir",
    "max_steps",
    "skip_bad",
    "emulate_fp16",
)


def parse(kind: Kind, arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line of launch/pretrain.py or launch/sft.py, by ``kind``."""
    parser = argparse.ArgumentParser(prog=f"deepspeed launch/{kind}.py", allow_abbrev=False)
    parser.add_argument(
        "--deepspeed_config", type=Path, required=True, help="DeepSpeed JSON, see ds_configs/"
    )
    parser.add_argument("--config", type=Path, help="YAML with model, data, schedule and run settings")
    parser.add_argument(
        "--train-file", type=Path, nargs="+", help="training files; default: the built-in corpus"
    )
    parser.add_argument("--eval-file", type=Path, nargs="+", help="held-out files")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer directory or .model file")
    parser.add_argument("--output-dir", type=Path, help="run directory")
    parser.add_argument("--max-steps", type=int, help="optimizer steps; default: --set num_train_epochs")
    parser.add_argument(
        "--resume", nargs="?", const="", help="go on: from --output-dir, or a run or checkpoint directory"
    )
    parser.add_argument(
        "--skip-bad", action="store_true", default=None, help="leave out bad lines, up to a limit"
    )
    parser.add_argument(
        "--emulate-fp16", action="store_true", default=None, help="fp16 on a CPU: for tests, slow"
    )
    parser.add_argument(
        "--overfit-one-batch", action="store_true", help="train on the first step's data only"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, train nothing")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a YAML setting"
    )
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # the launcher gives it
    if kind == "sft":
        parser.add_argument(
            "--model", type=Path, required=True, help="pretrained run, checkpoint or directory"
        )
    return parser.parse_args(arguments)


def config_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given options that override RunConfig fields."""
    return {name: getattr(arguments, name) for name in _CONFIG_OPTIONS}
