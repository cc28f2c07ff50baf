"""Health: silent on healthy runs, one finding of the right kind on each sick one, the same after a resume."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from minimind.base.findings import Finding
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import resolve
from minimind.config.health import HealthConfig
from minimind.config.run import load_run_config
from minimind.training.health.monitor import Health, before_run
from minimind.training.health.rules import Blocks, oscillation, overfitting, reversals
from minimind.training.values import StepMetrics

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "ds_configs").glob("*.json"))
STEPS = 2000
EVERY = 100  # steps between evaluations
GIB = 2**30


@dataclass(frozen=True)
class Seen:
    """What a run shows at one step: its metrics, the host's facts and perhaps a held-out loss."""

    metrics: StepMetrics
    memory: int
    wait: float
    held_out: float | None


Change = Callable[[Seen, int, random.Random], Seen]


def healthy(
    seed: int, fp16: bool = True, steps: int = STEPS, noise: float = 0.03, floor: float = 2.0
) -> Iterator[Seen]:
    """A loss that falls as a power law with noise of ``noise`` times its level; warmup, cosine; three early skips."""
    rng = random.Random(seed)
    skipped = tokens = 0
    scale: float = 65536.0
    power = rng.uniform(0.2, 0.5)
    for step in range(1, steps + 1):
        clean = floor + 6.5 * (1 + step / 20) ** -power
        applied = not (fp16 and step in (2, 3, 17))
        scale = scale if applied else scale / 2
        if step == 1200:
            scale, applied = scale * 2, True
        skipped += not applied
        tokens += 4000 if applied else 0
        level = max(0.7, 8 / (1 + step / 5))
        norm = level * math.exp(rng.gauss(0, 0.4)) * (6 if rng.random() < 0.01 else 1)
        warm, progress = min(1.0, step / 40), step / STEPS
        lr = 1e-3 * warm * (0.55 + 0.45 * math.cos(math.pi * progress))
        pace = None if step <= 10 else 8000 * math.exp(rng.gauss(0, 0.1))
        metrics = StepMetrics(
            step,
            tokens,
            clean * (1 + rng.gauss(0, noise)),
            norm if applied else math.inf,
            lr,
            scale if fp16 else None,
            skipped,
            applied,
            pace,
            5.0,
            step / 1000,
        )
        memory = int(2 * GIB + 0.4 * GIB * (1 - math.exp(-step / 100)) + rng.gauss(0, 2e6))
        held_out = clean + 0.05 + rng.gauss(0, 0.005) if step % EVERY == 0 else None
        yield Seen(metrics, memory, rng.uniform(0, 0.02), held_out)


def observe(health: Health, run: Iterator[Seen]) -> list[Finding]:
    found: list[Finding] = []
    for seen in run:
        found += health.observe_step(seen.metrics, seen.memory, seen.wait)
        if seen.held_out is not None:
            found += health.observe_evaluation(seen.metrics.step, seen.held_out)
    return found


def sick(change: Change, seed: int, **options: bool) -> Iterator[Seen]:
    rng = random.Random(seed + 1000)
    for seen in healthy(seed, steps=1200, **options):
        yield change(seen, seen.metrics.step, rng)


def with_metrics(seen: Seen, **changes: object) -> Seen:
    return replace(seen, metrics=replace(seen.metrics, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("fp16", "noise"), [(True, 0.03), (False, 0.1)])
def test_a_healthy_run_is_silent(seed: int, fp16: bool, noise: float) -> None:
    assert observe(Health(), healthy(seed, fp16, noise=noise)) == []


def test_a_small_model_that_falls_fast_is_silent() -> None:
    """The shape of the built-in corpus: from 6.9 to 1.3 nats in 150 steps, gradient norms from 4 down to 0.2."""

    def fast(seen: Seen, step: int, rng: random.Random) -> Seen:
        loss = (1.1 + 5.8 * math.exp(-step / 40) + 0.3 * (1 + step) ** -0.3) * math.exp(rng.gauss(0, 0.12))
        return with_metrics(seen, loss=loss, grad_norm=max(0.2, 4 * (1 + step / 10) ** -0.6))

    for seed in range(2):
        run = (
            fast(seen, seen.metrics.step, random.Random(seen.metrics.step + seed))
            for seen in healthy(seed, False, steps=700)
        )
        assert observe(Health(), run) == []


def scaled(name: str, value: float, after: int) -> Change:
    return lambda seen, step, rng: with_metrics(seen, **{name: value}) if step > after else seen


def factor(name: str, value: float, after: int) -> Change:
    def change(seen: Seen, step: int, rng: random.Random) -> Seen:
        old = getattr(seen.metrics, name)
        return with_metrics(seen, **{name: old * value}) if step > after and old is not None else seen

    return change


def early_skips(seen: Seen, step: int, rng: random.Random) -> Seen:
    return with_metrics(seen, applied=False, grad_norm=math.inf) if step < 9 else seen


def late_skips(seen: Seen, step: int, rng: random.Random) -> Seen:
    skip = step > 600 and step % 10 == 0
    return with_metrics(seen, applied=False, grad_norm=math.inf) if skip else seen


def bad_gradient(seen: Seen, step: int, rng: random.Random) -> Seen:
    return with_metrics(seen, applied=False, grad_norm=math.nan) if step == 700 else seen


def bad_loss(value: float) -> Change:
    return lambda seen, step, rng: with_metrics(seen, loss=value) if step == 700 else seen


def spike(seen: Seen, step: int, rng: random.Random) -> Seen:
    return with_metrics(seen, loss=seen.metrics.loss + 3) if step in (700, 701) else seen


def stuck(seen: Seen, step: int, rng: random.Random) -> Seen:
    return with_metrics(seen, loss=max(seen.metrics.loss, 6.8 + rng.gauss(0, 0.15)))


def vanishing(seen: Seen, step: int, rng: random.Random) -> Seen:
    return with_metrics(stuck(seen, step, rng), grad_norm=1e-3)


def waves(seen: Seen, step: int, rng: random.Random) -> Seen:
    swing = 0.3 * math.sin(2 * math.pi * step / 40) if step > 500 else 0.0
    return with_metrics(seen, loss=seen.metrics.loss * (1 + swing))


def alternating(seen: Seen, step: int, rng: random.Random) -> Seen:
    swing = 0.2 * (-1) ** step if step > 500 else 0.0
    return with_metrics(seen, loss=seen.metrics.loss * (1 + swing))


def overfit(seen: Seen, step: int, rng: random.Random) -> Seen:
    rise = 0.5 * (step / STEPS) if step > 700 else 0.0
    return replace(seen, held_out=None if seen.held_out is None else 3.0 - 0.0001 * min(step, 700) + rise)


def unreadable_evaluation(seen: Seen, step: int, rng: random.Random) -> Seen:
    return replace(seen, held_out=math.nan) if step == 1000 else seen


def leak(seen: Seen, step: int, rng: random.Random) -> Seen:
    return replace(seen, memory=seen.memory + step * 2**20)


def slow_data(seen: Seen, step: int, rng: random.Random) -> Seen:
    return replace(seen, wait=0.3) if step > 500 else seen


SICK: list[tuple[str, Change, bool]] = [
    ("overflow-at-start", early_skips, True),
    ("overflow-often", late_skips, True),
    ("loss-scale-low", scaled("loss_scale", 512.0, 500), True),
    ("gradient-not-finite", bad_gradient, False),
    ("grad-norm-high", factor("grad_norm", 30.0, 300), False),
    ("grad-norm-above-band", factor("grad_norm", 6.0, 300), False),
    ("grad-norm-below-band", vanishing, False),
    ("loss-not-finite", bad_loss(math.nan), True),
    ("loss-not-finite", bad_loss(math.inf), False),
    ("loss-spike", spike, True),
    ("loss-plateau", stuck, True),
    ("loss-oscillates", waves, True),
    ("loss-oscillates", alternating, False),
    ("overfitting", overfit, True),
    ("evaluation-not-finite", unreadable_evaluation, True),
    ("throughput-drop", factor("tokens_per_second", 0.3, 900), True),
    ("memory-growth", leak, True),
    ("data-stall", slow_data, True),
]


@pytest.mark.parametrize(("code", "change", "fp16"), SICK, ids=[f"{i}-{s[0]}" for i, s in enumerate(SICK)])
def test_a_sick_run_gives_exactly_its_own_finding(code: str, change: Change, fp16: bool) -> None:
    found = observe(Health(), sick(change, 0, fp16=fp16))
    assert [finding.code for finding in found] == [code]
    (finding,) = found
    assert finding.step and finding.message and finding.advice and "\n" not in finding.advice
    assert finding.values


def test_a_code_comes_again_only_after_it_healed() -> None:
    def two_episodes(seen: Seen, step: int, rng: random.Random) -> Seen:
        return with_metrics(seen, loss=math.nan) if step in (500, 501, 590, 900) else seen

    found = observe(Health(), sick(two_episodes, 0))
    assert [(finding.code, finding.step) for finding in found] == [("loss-not-finite", 500), ("loss-not-finite", 900)]


def test_an_episode_ends_after_exactly_so_many_healthy_steps() -> None:
    health, said = Health(HealthConfig(heal_steps=3)), []
    for step in range(1, 9):
        loss = math.nan if step in (1, 4, 8) else 3.0  # two healthy steps between, then three
        metrics = StepMetrics(step, step, loss, 1.0, 1e-3, None, 0, True, None, 1.0, 0.0)
        said += [finding.step for finding in health.observe_step(metrics)]
    assert said == [1, 8]


def test_large_gradients_at_the_start_are_not_counted() -> None:
    health, said = Health(HealthConfig(start_steps=5, grad_norm_high_steps=4)), []
    for step in range(1, 12):
        metrics = StepMetrics(step, step, 3.0, 100.0, 1e-3, None, 0, True, None, 1.0, 0.0)
        said += [(finding.code, finding.step) for finding in health.observe_step(metrics)]
    assert said == [("grad-norm-high", 9)]


def test_overfitting_is_so_many_rises_while_the_training_loss_falls() -> None:
    config = HealthConfig(overfit_evaluations=3)
    rising = [(3.0, 2.0), (3.1, 1.9), (3.2, 1.8), (3.3, 1.7)]
    assert overfitting(rising, config) is not None
    assert overfitting(rising[1:], config) is None
    assert overfitting([*rising[:3], (3.3, 2.0)], config) is None
    assert overfitting([*rising[:2], (3.1, 1.8), rising[3]], config) is None


def test_an_evaluation_is_compared_with_the_training_since_the_last_one() -> None:
    health = Health()
    for step, loss in enumerate((4.0, 6.0, 2.0, math.nan, 1.0), 1):
        health.observe_step(StepMetrics(step, step, loss, 1.0, 1e-3, None, 0, True, None, 1.0, 0.0))
        if step in (2, 5):
            health.observe_evaluation(step, 5.0)
    assert list(health.evaluations) == [(5.0, 5.0), (5.0, 1.5)]


@pytest.mark.parametrize("change", [waves, late_skips, leak, overfit])
def test_a_resumed_run_gives_the_same_findings(change: Change) -> None:
    run = list(sick(change, 0))
    whole, first = Health(), Health()
    expected = observe(whole, iter(run))
    found = observe(first, iter(run[:637]))
    second = Health.from_state(json.loads(json.dumps(pickle.loads(pickle.dumps(first.state())))))
    found += observe(second, iter(run[637:]))
    assert found == expected != []
    assert second.state() == whole.state()


def test_the_state_does_not_grow_with_the_run() -> None:
    health = Health()
    sizes = []
    for count in (1200, 400, 800):
        observe(health, healthy(3, steps=count))
        sizes.append(len(pickle.dumps(health.state())))
    assert sizes[2] < 1.1 * sizes[0] < 100_000


def test_switched_off_it_says_nothing() -> None:
    off = HealthConfig(enabled=False)
    assert observe(Health(off), sick(bad_loss(math.nan), 0)) == []
    assert before_run("pretrain", "AdamW", 1.0, 26_000_000, off) == []


def test_thresholds_come_from_the_configuration() -> None:
    found = observe(Health(HealthConfig(loss_scale_low=1e6)), healthy(0))
    assert [finding.code for finding in found] == ["loss-scale-low"]


@pytest.mark.parametrize("wrong", [{"spike_zz": 3}, {"spike_z": -1}, {"grad_norm_band": (2, 1)}, {"overflow_rate": 2}])
def test_wrong_thresholds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HealthConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "optimizer", "lr", "parameters", "code"),
    [
        ("pretrain", "AdamW", 1e-3, 26_000_000, None),
        ("sft", "AdamW", 1e-5, 26_000_000, None),  # a tenth of the low end ...
        ("sft", "AdamW", 6e-4, 26_000_000, None),  # ... to a fifth of the high one
        ("sft", "AdamW", 6.1e-4, 26_000_000, "lr-above-band"),
        ("sft", "AdamW", 9e-6, 26_000_000, "lr-below-band"),
        ("pretrain", "AdamW", 2e-3, 26_000_000, None),  # the shipped JSON
        ("pretrain", "AdamW", 3e-3, 104_000_000, None),
        ("pretrain", "AdamW", 2e-3, 400_000_000, "lr-above-band"),
        ("pretrain", "AdamW", 1e-4, 26_000_000, None),
        ("pretrain", "AdamW", 5e-3, 26_000_000, "lr-above-band"),
        ("pretrain", "AdamW8bit", 1e-5, 26_000_000, "lr-below-band"),
        ("pretrain", "AdamW", 4e-3, 900_000, None),  # the built-in demo
        ("pretrain", "AdamW", 1e-3, 2_000_000_000, "lr-above-band"),
        ("sft", "AdamW", 1e-4, 26_000_000, None),
        ("sft", "AdamW", 1e-3, 26_000_000, "lr-above-band"),
        ("pretrain", "Lion", 2e-4, 26_000_000, None),
        ("pretrain", "Lion", 1e-3, 400_000_000, "lr-above-band"),
        ("pretrain", "Lion", 2e-3, 26_000_000, "lr-above-band"),
        ("pretrain", "Muon", 0.02, 26_000_000, None),
        ("pretrain", "Muon", 0.5, 26_000_000, "lr-above-band"),
        ("pretrain", "Muon", 1e-4, 26_000_000, "lr-below-band"),
        ("pretrain", "Unheard", 9.0, 26_000_000, None),
    ],
)
def test_an_unusual_learning_rate_is_said_before_the_run(
    kind: str, optimizer: str, lr: float, parameters: int, code: str | None
) -> None:
    found = before_run(kind, optimizer, lr, parameters)
    assert [finding.code for finding in found] == ([] if code is None else [code])
    assert all(finding.step is None and finding.values["lr"] == lr for finding in found)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("preset", ["26m", "104m", "tiny"])
def test_nothing_is_said_about_the_shipped_rates(path: Path, preset: str) -> None:
    kind = "sft" if path.name.startswith("sft_") else "pretrain"
    demo = ROOT / "configs" / "demo_pretrain.yaml" if path.name.startswith("demo_") else None
    run = load_run_config(demo, [] if demo else [f"model={preset}"])
    resolved = resolve(path, run, 1, Hardware("cuda", fp16=True, bf16=True), kind=kind)
    rates, size = resolved.optimizer.params, run.model.num_parameters()
    assert before_run(kind, resolved.optimizer.type, rates.get("muon_lr", rates["lr"]), size) == []


@pytest.mark.parametrize("kind", ["pretrain", "sft"])
@pytest.mark.parametrize("optimizer", ["AdamW", "Adam", "AdamW8bit", "Lion", "Muon"])
@pytest.mark.parametrize("size", [500_000, 26_000_000, 400_000_000, 3_000_000_000])
@pytest.mark.parametrize("band", [None, (1.01e-3, 1.02e-3)])
def test_the_advised_rate_is_usual_itself(
    kind: str, optimizer: str, size: int, band: tuple[float, float] | None
) -> None:
    names = ("lr_band_tiny", "lr_band_small", "lr_band", "lr_band_large", "lr_band_muon")
    config = HealthConfig(**dict.fromkeys(names, band)) if band else HealthConfig()
    for rate in (1e-9, 1e3):
        (finding,) = before_run(kind, optimizer, rate, size, config)
        assert f"start from {finding.values['start']:g}" in finding.advice
        assert before_run(kind, optimizer, finding.values["start"], size, config) == []


def test_blocks_hold_the_whole_run_in_bounded_space() -> None:
    blocks = Blocks()
    for value in range(10_000):
        blocks.add(float(value))
    quarters = blocks.quarters(1)
    assert quarters is not None and len(blocks.means) <= 64 and blocks.size == 256
    middles = [sum(quarter) / len(quarter) for quarter in quarters]
    assert middles == sorted(middles) and middles[0] < 2000 and middles[3] > 8000
    assert Blocks([1.0] * 15).quarters(1) is None


def test_reversals_count_only_large_moves() -> None:
    assert reversals([0, 3, 0, 3, 0], 2) == 3
    assert reversals([0, 1, 0, 1, 0], 2) == 0
    assert reversals([9, 7, 5, 3, 1], 2) == 0


@pytest.mark.parametrize("seed", range(20))
def test_batches_of_unlike_texts_are_not_an_oscillation(seed: int) -> None:
    """Few rows a step and kinds of text with very different losses: large independent noise (the built-in corpus)."""
    draw = random.Random(seed)
    losses = [sum(draw.choice([0.2, 0.5, 0.6, 1.4]) for _ in range(4)) / 4 for _ in range(128)]
    assert oscillation(losses, HealthConfig()) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_first_fall_with_noise_is_not_an_oscillation(seed: int) -> None:
    draw = random.Random(seed)
    for start in (40, 80, 120):
        fall = [0.8 + 5 * math.exp(-step / 40) for step in range(start, start + 128)]
        losses = [level + sum(draw.choice([-0.6, -0.1, 0.0, 0.7]) for _ in range(4)) / 4 for level in fall]
        assert oscillation(losses, HealthConfig()) is None
