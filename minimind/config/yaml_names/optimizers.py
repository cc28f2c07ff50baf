"""Hugging Face's names of optimizers (``optim``) -> the types of a DeepSpeed JSON."""

from __future__ import annotations

from minimind.base.problems import nearest

_NAMES = {
    "AdamW": (
        "adamw",
        "adamw_hf",
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_torch_xla",
        "adamw_torch_npu_fused",
        "adamw_apex_fused",
        "paged_adamw",
        "paged_adamw_32bit",
    ),
    "AdamW8bit": ("adamw8bit", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"),
    "Lion": ("lion", "lion_32bit", "paged_lion_32bit"),
    "Muon": ("muon",),
    "SGD": ("sgd",),
    "Adagrad": ("adagrad",),
    "RMSprop": ("rmsprop", "rmsprop_bnb_32bit"),
    "Adadelta": ("adadelta",),
    "Adamax": ("adamax",),
    "NAdam": ("nadam",),
    "RAdam": ("radam",),
}
_TYPES = {name: kind for kind, names in _NAMES.items() for name in names}


def optimizer_type(name: str) -> str:
    """The type that ``name`` means. Raises ValueError for an optimizer that is not here."""
    if name.lower() not in _TYPES:
        raise ValueError(f"{name!r} is not here{nearest(name, _TYPES)}; there are {', '.join(sorted(_TYPES))}")
    return _TYPES[name.lower()]
