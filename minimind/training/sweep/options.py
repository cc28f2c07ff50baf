"""The options of `launch/lr_sweep.py`, the rates they ask for, and a DeepSpeed JSON at another rate. No torch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minimind.base.errors import UserError
from minimind.config.deepspeed import Resolved
from minimind.config.deepspeed.optimizer import RATES
from minimind.training.run.arguments import common_parser, with_words

MIN_STEPS = 10  # fewer can't be told from noise
WHICH_RATES = ("--learning-rates", "--from", "--to", "--count")  # options that a new range replaces
SWEEP_ONLY = (*WHICH_RATES, "--steps", "--range-test")  # and those that pretrain.py lacks


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line: pretraining's configuration and data options, and the rates."""
    parser = common_parser("lr_sweep")
    add = parser.add_argument
    add("--learning-rates", metavar="R,R,...", help="the rates to try, such as 1e-4,3e-4,1e-3")
    add("--from", dest="low", type=float, metavar="R", help="lowest rate of a geometric range")
    add("--to", dest="high", type=float, metavar="R", help="highest rate of that range")
    add("--count", type=int, default=7, help="rates in that range (default 7)")
    add("--steps", type=int, help="steps of each run (default 50; --range-test: 100)")
    add("--range-test", action="store_true", help="one run, its rate rising from --from to --to step by step")
    parser.set_defaults(model=None)  # a new one, or that of the YAML
    return with_words(parser, argv)


def choose_rates(arguments: argparse.Namespace) -> list[float]:
    """The rates to try, rising; for a range test the two ends. Raises UserError for ones that make no sense."""
    low, high, listed, steps = arguments.low, arguments.high, arguments.learning_rates, arguments.steps
    if steps is not None and steps < MIN_STEPS:
        raise UserError(f"--steps {steps}: too few to tell a trend from noise; give at least {MIN_STEPS}")
    if listed is not None:
        if arguments.range_test or low is not None or high is not None:
            raise UserError("--learning-rates goes with neither --from, --to nor --range-test: give one of them")
        return _listed(listed)
    if low is None or high is None:
        raise UserError("which rates? give --learning-rates 1e-4,3e-4,1e-3 or --from 1e-5 --to 1e-2")
    if not 0 < low < high < math.inf:
        raise UserError(f"--from {low:g} --to {high:g}: both must be above 0, and --to above --from")
    if arguments.range_test:
        return [low, high]
    if arguments.count < 2:
        raise UserError(f"--count {arguments.count}: a sweep needs at least 2 rates")
    return geometric(low, high, arguments.count)


def geometric(low: float, high: float, count: int) -> list[float]:
    """``count`` rates from ``low`` to ``high`` by equal factors, to three digits: what is printed is what runs."""
    return [float(f"{low * (high / low) ** (i / (count - 1)):.3g}") for i in range(count)]


def _listed(text: str) -> list[float]:
    try:
        rates = sorted({float(word) for word in text.split(",") if word.strip()})
    except ValueError:
        raise UserError(f"--learning-rates {text}: expected numbers with commas, like 1e-4,3e-4,1e-3") from None
    if len(rates) < 2 or not all(0 < rate < math.inf for rate in rates):
        raise UserError(f"--learning-rates {text}: give at least two different rates, all above 0")
    return rates


def rates_at(params: Mapping[str, Any], rate: float) -> dict[str, float]:
    """Every learning rate among the optimizer's ``params``, scaled together so that AdamW's is ``rate``."""
    reference = params.get("adam_lr", params["lr"])
    return {name: rate * (params[name] / reference) for name in RATES if name in params}


def with_rate(resolved: Resolved, rate: float) -> Resolved:
    """The same configuration at ``rate`` and without a scheduler."""
    config = {key: value for key, value in resolved.config.items() if key != "scheduler"}
    params = {**resolved.optimizer.params, **rates_at(resolved.optimizer.params, rate)}
    return replace(resolved, config=config, scheduler=None, optimizer=replace(resolved.optimizer, params=params))
