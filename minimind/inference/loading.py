"""A model from whatever MODEL names: run directory, checkpoint, exported or Hugging Face Llama directory,
MiniMind .pth.

Contract: the weights fit the shape exactly (missing, left-over and misshapen ones are named in one
UserError), and nothing that is read can run code: safetensors, or ``torch.load(weights_only=True)``. A run
directory means its ``final/``, or its latest checkpoint while it has none.

Weakness: a checkpoint holds the weights in the training precision; fp32 masters of a half-precision run are
not looked up.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from minimind.base.defaults import FINAL, LATEST, MODEL_STATES, PARTITIONED_STATES, RUN_CONFIG
from minimind.base.errors import UserError
from minimind.base.files import directory_inside, path_inside
from minimind.base.strict.json_text import read_pointer, reason_of
from minimind.interop import huggingface, upstream
from minimind.interop.bombs import refuse_misfits
from minimind.interop.huggingface import CONFIG
from minimind.interop.partitioned import read_weights
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import NAMES, Tokenizer

State = dict[str, Tensor]
ADAPTER = "adapter_config.json"  # of PEFT
_MOST_CHILDREN, _MOST_NAMED = 1000, 5  # of a directory without a model: looked at, and named


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    tokenizer: str | Path | None = None,
) -> tuple[Transformer, Tokenizer]:
    """The model in evaluation mode on ``device``, and its tokenizer (``tokenizer``: instead of the one
    found beside the model).

    ``dtype`` None: as saved, but fp32 on a CPU, where half precision saves nothing. Raises UserError when there is no
    model, when it is damaged or of another architecture, or when its tokenizer is missing or does not fit.
    """
    source = _resolve(Path(path))
    state, config, beside = _read(source)
    model = build(state, config, source)
    loaded = _tokenizer(Path(tokenizer) if tokenizer else beside, source)
    if loaded.vocab_size > config.vocab_size:
        raise UserError(
            f"{loaded.path}: {loaded.vocab_size} pieces do not fit the vocabulary of {source} ({config.vocab_size}); "
            "give the tokenizer it was trained with"
        )
    _refuse_another(loaded, source, beside)
    model.output_size = loaded.vocab_size
    return model.to(device=device, dtype=dtype or default_dtype(device)).eval(), loaded


def default_dtype(device: str | torch.device) -> torch.dtype | None:
    """None: as saved. On a CPU fp32: exact, and several times faster than half precision that the CPU emulates."""
    return torch.float32 if torch.device(device).type == "cpu" else None


def build(state: State, config: ModelConfig, source: Path) -> Transformer:
    """A Transformer of ``config`` holding ``state``. Raises UserError naming what is missing, extra or misshapen."""
    refuse_misfits(state, source)
    if config.num_hidden_layers > len(state):  # before anything is made by layer
        raise UserError(
            f"{source}: its configuration declares {config.num_hidden_layers:,} layers, "
            f"the weights are {len(state):,} tensors"
        )
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    missing, extra = expected.keys() - state.keys(), state.keys() - expected.keys()
    shapes = [
        f"{name} is {tuple(state[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    problems = [
        f"{label} {', '.join(sorted(names)[:3])}{' ...' if len(names) > 3 else ''}"
        for label, names in (("missing", missing), ("unknown", extra))
        if names
    ] + shapes[:3]
    if problems:
        raise UserError(f"{source}: the weights do not fit its configuration: {'; '.join(problems)}")
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


def _resolve(path: Path) -> Path:
    """The directory or file that holds the weights. Raises UserError when there is none."""
    if not path.exists():
        raise UserError(
            f"{path}: there is no such model; give a run directory, a checkpoint, an exported directory or a .pth"
        )
    if path.is_file() or (path / CONFIG).is_file() or _checkpoint_file(path):
        return path
    if (path / FINAL / CONFIG).is_file():
        return _inside(path, FINAL)
    latest = _latest(path)
    if latest is not None and _checkpoint_file(latest):
        return latest
    if (path / ADAPTER).is_file():
        raise UserError(f"{path}: a PEFT adapter without its model; merge it (merge_and_unload) and save that")
    raise UserError(
        f"{path}: no model in it (no final/, no complete checkpoint, no config.json with model.safetensors)"
        f"{_models_below(path)}"
    )


def _models_below(path: Path) -> str:
    """The models one level below, by name, for whoever has named the directory that holds the runs."""
    with contextlib.suppress(OSError):  # nothing can be looked at: then nothing is named
        found = sorted(str(child) for child in islice(path.iterdir(), _MOST_CHILDREN) if _holds_model(child))
        more = ", ..." if len(found) > _MOST_NAMED else ""
        return f"; there is one in {', '.join(found[:_MOST_NAMED])}{more}" if found else ""
    return ""


def _holds_model(path: Path) -> bool:
    return any((place / CONFIG).is_file() for place in (path, path / FINAL)) or (path / LATEST).is_file()


def _inside(run_dir: Path, name: str) -> Path:
    try:
        return directory_inside(run_dir, name)
    except OSError as error:
        raise UserError(f"{run_dir / name}: {error.strerror}") from error


def _latest(run_dir: Path) -> Path | None:
    """The checkpoint that a run's ``latest`` names, None without one. UserError if it names anything else."""
    try:
        target = read_pointer(run_dir, LATEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir / LATEST}: {reason_of(error)}") from error
    return _inside(run_dir, str(target.relative_to(run_dir))) if target.is_dir() else None


def _read(source: Path) -> tuple[State, ModelConfig, Path]:
    """Weights, shape, and where the tokenizer should be."""
    if source.is_file():
        state, config = upstream.load_pth(source)
        return state, config, source.parent
    if (source / CONFIG).is_file():
        state, config = huggingface.load_pretrained(source)
        return state, config, source
    return _read_checkpoint(source)


def _refuse_another(loaded: Tokenizer, source: Path, beside: Path) -> None:
    """Raises UserError for a tokenizer that is not the model's, where an export's weights or a run tell which is."""
    known = huggingface.trained_with(source) if (source / CONFIG).is_file() else ()
    if not known and not source.is_file() and Tokenizer.there(beside):
        known = (Tokenizer.load(beside).fingerprint,)
    if known and loaded.fingerprint not in known:
        raise UserError(
            f"{loaded.path}: not the tokenizer that {source} was trained with (SHA-256 "
            f"{loaded.fingerprint[:12]}... instead of {known[0][:12]}...): its ids mean other pieces; give that one"
        )


def _tokenizer(path: Path, source: Path) -> Tokenizer:
    try:
        missing = path.is_dir() and not Tokenizer.there(path)
    except OSError as error:  # a name that no file can have
        raise UserError(f"{source}: its tokenizer can't be read: {error.strerror}") from error
    if missing:
        raise UserError(
            f"{source}: no {' and no '.join(NAMES)} in {path}; give the tokenizer that the model was trained with"
        )
    try:
        return Tokenizer.load(path)
    except UserError as error:  # a run's config.yaml may name any place
        raise error if str(source) in str(error) else UserError(f"{source}: {error}") from error


def _checkpoint_file(path: Path) -> Path | None:
    """DeepSpeed's file with the module's weights (at ZeRO stage 3 with their shapes), relative to a checkpoint's
    directory (or in its tag's)."""
    if not path.is_dir():
        return None
    names = (MODEL_STATES, PARTITIONED_STATES)
    found = [file for name in names for file in (path / name, *sorted(path.glob(f"*/{name}")))]
    return next((file.relative_to(path) for file in found if file.is_file()), None)


def _read_checkpoint(path: Path) -> tuple[State, ModelConfig, Path]:
    name = _checkpoint_file(path)
    assert name is not None, "callers go through _resolve"
    run_dir = next((parent for parent in path.resolve().parents if (parent / RUN_CONFIG).is_file()), None)
    if run_dir is None:
        raise UserError(f"{path}: a checkpoint needs its run's config.yaml above it; keep it inside the run directory")
    from minimind.config.run import load_run_config

    try:
        config, file = path_inside(run_dir, RUN_CONFIG), path_inside(path, name)
    except OSError as error:
        raise UserError(f"{error.filename}: can't be read: {error.strerror}") from error
    run = load_run_config(config)
    saved = upstream.read_torch(file)
    state = read_weights(file.parent, saved) if name.name == PARTITIONED_STATES else saved.get("module")
    if not isinstance(state, dict):
        raise UserError(f"{file}: not a DeepSpeed checkpoint (it has no weights under 'module')")
    refuse_misfits(state, file)
    weights = {name: value.contiguous() for name, value in state.items()}
    return weights, run.model, run_dir if Tokenizer.there(run_dir) else run.tokenizer or run_dir
