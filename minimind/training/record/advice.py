"""What a finding advises, made whole for this run: commands that can be typed, and the learning rate first.

The rules of health and recovery are pure: they know neither the run's directory nor what was said before it. Every
finding passes here on its way out, so that

- `minimind samples` names the run and the step;
- while the peak learning rate is out of its usual band, advice on how training goes begins with the rate: data that
  look odd at ten times the rate usually are not;
- no advice asks for what the run already has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from minimind.base.command_lines import typed
from minimind.base.findings import Finding

SAMPLES = "(minimind samples)"  # as the rules write it
LOWER_CLIPPING = 0.5  # what `grad-norm-high` advises
_LOOK = f"look at this step's samples {SAMPLES}"
# What is left to try once the rate is usual; None: the advice as it is
_AFTER_THE_RATE: dict[str, str | None] = {
    "loss-not-finite": _LOOK,
    "gradient-not-finite": _LOOK,
    "evaluation-not-finite": "",
    "loss-spike": _LOOK,
    "loss-plateau": "look at the data",
    "loss-oscillates": "make the batch larger (gradient_accumulation_steps)",
    "overflow-often": "use bf16 if the GPU has it",
    "loss-scale-low": None,
    "grad-norm-high": None,
    "grad-norm-above-band": "enlarge the batch",
    "grad-norm-below-band": "",
    "overfitting": None,
    "rolled-back": None,
    "run-failed": None,
}


class Adviser:
    """Completes the findings of one run, in the order in which they are said."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.gradient_clipping: float | None = None
        self.rate: Finding | None = None  # the finding that the rate is out of its band

    def complete(self, finding: Finding) -> Finding:
        """The finding with its advice made whole."""
        if finding.code in ("lr-above-band", "lr-below-band"):
            self.rate = finding
            return finding
        advice = self._possible(finding)
        if self.rate is not None and finding.code in _AFTER_THE_RATE:
            rest = _AFTER_THE_RATE[finding.code]
            advice = self._rate_first(advice if rest is None else rest)
        if SAMPLES in advice and finding.step:
            command = typed("minimind", "samples", self._run_dir, "--step", finding.step)
            advice = advice.replace(SAMPLES, f"({command})")
        return replace(finding, advice=advice)

    def rate_remedy(self) -> str | None:
        """What to do about the learning rate; None while it is usual."""
        if self.rate is None:
            return None
        values = self.rate.values
        side = "below" if self.rate.code == "lr-below-band" else "above"
        return (
            f"the learning rate: {values['lr']:g} is {side} the usual {values['low']:.3g} to {values['high']:.3g}: "
            f"start from {values['start']:g}"
        )

    def _rate_first(self, rest: str) -> str:
        return f"first {self.rate_remedy()}" + (f"; then {rest}" if rest else "")

    def _possible(self, finding: Finding) -> str:
        clipped = self.gradient_clipping is not None and 0 < self.gradient_clipping <= LOWER_CLIPPING
        if finding.code == "grad-norm-high" and clipped:
            return f"lower the learning rate: gradients are clipped at {self.gradient_clipping:g} already"
        return finding.advice
