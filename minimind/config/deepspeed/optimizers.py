"""The optimizers that a JSON may name, one entry each: what its section may hold, its rates, its memory, who builds it.

Plain data, without torch: ``builder`` names a function ``(groups, params) -> torch.optim.Optimizer`` as
"module:function", which training/engine/optimizers.py looks up when a run needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minimind.config.deepspeed.schema import ValueKind


@dataclass(frozen=True)
class OptimizerKind:
    """``state_bytes``: of optimizer state by parameter, for (body matrices, the rest), as tests count them.

    ``absent``: what DeepSpeed takes for a key that is missing, where it is not its Adam's; ``absent_betas`` likewise.
    ``also``: further names that DeepSpeed has for it, in lower case without ``_`` and ``-``.
    """

    params: Mapping[str, ValueKind]
    learning_rate: float  # peak, for pretraining
    sft_learning_rate: float
    state_bytes: tuple[float, float]
    builder: str
    absent: Mapping[str, float] = field(default_factory=dict)
    absent_betas: tuple[float, float] = (0.9, 0.999)
    also: tuple[str, ...] = ()


_BUILDERS = "minimind.training.engine.optimizers"
_PLAIN: dict[str, ValueKind] = {"lr": "number", "betas": "list", "eps": "number", "weight_decay": "number"}
_ADAM: dict[str, ValueKind] = {
    **_PLAIN,
    "torch_adam": "bool",
    "adam_w_mode": "bool",
    "bias_correction": "bool",
    "amsgrad": "bool",
    "fused": "bool",
    "foreach": "bool",
    "fp32_optimizer_states": "bool",
    "set_grad_none": "bool",
}
_LION: dict[str, ValueKind] = {"lr": "number", "betas": "list", "weight_decay": "number"}
_MUON: dict[str, ValueKind] = {
    "lr": "number",
    "muon_lr": "number",
    "adam_lr": "number",
    "momentum": "number",
    "betas": "list",
    "eps": "number",
    "weight_decay": "number",
}
# torch.optim's, which DeepSpeed takes by name
_DECAYED: dict[str, ValueKind] = {"lr": "number", "weight_decay": "number", "foreach": "bool", "fused": "bool"}
_DECOUPLED: dict[str, ValueKind] = {"decoupled_weight_decay": "bool"}
_BLOCKS = 2 + 8 / 256  # one byte for each moment, and one fp32 scale for each by block of 256

# The rates are those of the shipped JSONs. AdamW's for pretraining: paired seeds in docs/LOG.md. Fine-tuning starts
# from weights that are good already; MiniMind's practice is a tenth of its own 1e-3.
OPTIMIZERS: dict[str, OptimizerKind] = {
    "AdamW": OptimizerKind(
        _ADAM, 2e-3, 1e-4, (8.0, 8.0), f"{_BUILDERS}:adamw", also=("adam", "fusedadam", "deepspeedcpuadam")
    ),
    "Adam": OptimizerKind(_ADAM, 2e-3, 1e-4, (8.0, 8.0), f"{_BUILDERS}:adam"),  # AdamW with "adam_w_mode": false
    "AdamW8bit": OptimizerKind(_PLAIN, 2e-3, 1e-4, (_BLOCKS, _BLOCKS), f"{_BUILDERS}:adamw8bit", also=("adam8bit",)),
    "Lion": OptimizerKind(_LION, 2e-4, 1e-5, (4.0, 4.0), f"{_BUILDERS}:lion"),
    # Its state is the momentum; embeddings and norms have AdamW's
    "Muon": OptimizerKind(
        _MUON, 3e-3, 3e-4, (4.0, 8.0), f"{_BUILDERS}:muon", absent={"eps": 1e-10}, absent_betas=(0.9, 0.95)
    ),
}


def _of_torch(
    name: str, rate: float, state_bytes: float, absent_eps: float | None = None, **params: ValueKind
) -> OptimizerKind:
    """One of torch.optim's at PyTorch's own rate, for nobody has swept it here; fine-tuning takes a tenth."""
    return OptimizerKind(
        {**_DECAYED, **params},
        learning_rate=rate,
        sft_learning_rate=0.1 * rate,
        state_bytes=(state_bytes, state_bytes),
        builder=f"{_BUILDERS}:{name.lower()}",
        absent={"lr": rate} if absent_eps is None else {"lr": rate, "eps": absent_eps},
    )


OPTIMIZERS |= {
    # A moment where it has a momentum; nothing without one (config/memory.py)
    "SGD": _of_torch("SGD", 1e-3, 4.0, momentum="number", dampening="number", nesterov="bool"),
    "Adagrad": _of_torch(
        "Adagrad", 1e-2, 4.0, 1e-10, eps="number", lr_decay="number", initial_accumulator_value="number"
    ),
    "RMSprop": _of_torch(
        "RMSprop", 1e-2, 4.0, eps="number", alpha="number", momentum="number", centered="bool"
    ),  # and 4 more each with momentum and centered
    "Adadelta": _of_torch("Adadelta", 1.0, 8.0, 1e-6, eps="number", rho="number"),
    "Adamax": _of_torch("Adamax", 2e-3, 8.0, eps="number", betas="list"),
    "NAdam": _of_torch("NAdam", 2e-3, 8.0, eps="number", betas="list", momentum_decay="number", **_DECOUPLED),
    "RAdam": _of_torch("RAdam", 1e-3, 8.0, eps="number", betas="list", **_DECOUPLED),
}


def kind_named(name: str) -> str | None:
    """The key of ``OPTIMIZERS`` that a JSON means by ``name``, in any spelling; None: it is none of them.

    DeepSpeed's "Adam" is AdamW unless "adam_w_mode" says otherwise.
    """
    plain = name.lower().replace("_", "").replace("-", "")
    also = {other: kind for kind, entry in OPTIMIZERS.items() for other in entry.also}
    return also.get(plain) or next((kind for kind in OPTIMIZERS if kind.lower() == plain), None)


def learning_rate(kind: str, optimizer: str) -> float:
    """The peak rate of ``optimizer`` (its type as in ``OptimizerSpec``) for "pretrain" or "sft"."""
    entry = OPTIMIZERS[optimizer]
    return entry.sft_learning_rate if kind == "sft" else entry.learning_rate
