"""The options that the launch scripts share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from minimind.base.command_lines import OwnCommand, as_known, hint
from minimind.base.display import complain
from minimind.base.hardware import Hardware
from minimind.config.run import RunConfig
from minimind.data.records.conversations import Kind

# Options that are fields of RunConfig; each is None unless given, so that the YAML's value stands.
_CONFIG_OPTIONS = (
    "train_file",
    "eval_file",
    "tokenizer",
    "output_dir",
    "max_steps",
    "skip_bad",
    "format",
    "text_field",
    "map",
    "encoding",
    "allow_special",
    "emulate_fp16",
)


class Parser(argparse.ArgumentParser):
    """Names in its errors come from the command line, where a glob puts any file's name."""

    def error(self, message: str) -> NoReturn:
        """``message`` as one line on stderr, and exit code 2."""
        complain(f"error: {message} ({self.prog.partition(' ')[2]} --help)")
        self.exit(2)

    @property
    def names(self) -> list[str]:
        """Every option."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def strict(self, words: Sequence[str]) -> argparse.Namespace:
        """The options; what is unknown ends it, with the option or setting that was probably meant."""
        parsed, unknown = self.parse_known_args(words)
        if unknown:
            hints = [text for word in unknown if (text := hint(word, self.names, RunConfig.model_fields))]
            self.error("; ".join([f"unrecognized arguments: {' '.join(unknown)}", *hints]))
        return parsed


def parse(kind: Kind, arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line of launch/pretrain.py or launch/sft.py, by ``kind``."""
    parser = common_parser(kind)
    parser.add_argument("--max-steps", type=int, help="optimizer steps; default: --set num_train_epochs")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        help="go on: from --output-dir, a run or a checkpoint; auto: begin without one",
    )
    parser.add_argument("--restarted", help=argparse.SUPPRESS)  # why: `minimind launch --restarts` says it
    parser.add_argument("--overfit-one-batch", action="store_true", help="train on the first step's data only")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, train nothing")
    start = "run, checkpoint, Hugging Face directory or .pth to start from; default: the YAML's model_name_or_path"
    start += "" if kind == "sft" else ", or a new model"
    parser.add_argument("--model", type=Path, help=start)
    return with_words(parser, arguments)


def with_words(parser: Parser, arguments: list[str] | None) -> argparse.Namespace:
    """The parsed options, and in ``words`` how they were typed."""
    words = as_known(sys.argv[1:] if arguments is None else arguments, parser.names)
    parsed = parser.strict(words)
    parsed.words = words
    return parsed


def own_command(script: str, arguments: argparse.Namespace, ranks: int, hardware: Hardware) -> OwnCommand:
    """The command that this process was started with, for lines that a person may type."""
    usual = hardware.count if hardware.device_type == "cuda" else 1
    return OwnCommand(script, tuple(getattr(arguments, "words", ())), ranks, usual)


def common_parser(script: str) -> Parser:
    """The options of every launch script: configuration, data, output."""
    parser = Parser(prog=f"deepspeed launch/{script}.py", allow_abbrev=False)
    parser.add_argument(
        "--deepspeed_config", type=Path, help="DeepSpeed JSON, see ds_configs/; default: the YAML's `deepspeed:`"
    )
    parser.add_argument("--strict", action="store_true", help="a key of the JSON that is not used is an error")
    parser.add_argument("--config", type=Path, help="YAML with model, data, schedule and run settings")
    parser.add_argument("--train-file", type=Path, nargs="+", help="training files; default: the built-in corpus")
    parser.add_argument("--eval-file", type=Path, nargs="+", help="held-out files")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="tokenizer directory, .model or tokenizer.json; default: trained on the files; none: ask",
    )
    parser.add_argument("--output-dir", type=Path, help="run directory")
    parser.add_argument("--skip-bad", action="store_true", default=None, help="leave out bad lines, up to a limit")
    _add_reading_options(parser)
    parser.add_argument("--emulate-fp16", action="store_true", default=None, help="fp16 on a CPU: for tests, slow")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a YAML setting")
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # the launcher gives it
    return parser


def _add_reading_options(parser: argparse.ArgumentParser) -> None:
    """How to read the files: the options of `minimind prepare`, by the same names."""
    parser.add_argument("--format", metavar="NAME", help="format of the records; default: by content")
    parser.add_argument("--text-field", metavar="FIELD", help="the field that holds the text")
    parser.add_argument("--map", metavar="NAME=FIELD,...", help="such as prompt=question,answer=solution")
    parser.add_argument("--encoding", metavar="NAME", help="of the files; default: by content")
    parser.add_argument(
        "--allow-special",
        action="store_true",
        default=None,
        help="texts were written with <|im_start|> and <|im_end|>, or <s>",
    )


def config_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given options that override RunConfig fields."""
    return {name: getattr(arguments, name, None) for name in _CONFIG_OPTIONS}
