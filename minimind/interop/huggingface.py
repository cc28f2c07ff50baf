"""Hugging Face layout: a directory that ``transformers`` loads as a model of its family, and such directories
read back.

Written: config.json, model.safetensors, generation_config.json, tokenizer.model (ours, the original),
tokenizer.json, tokenizer_config.json and chat_template.jinja (for transformers), README.md (the model card). Each file
appears complete or not at all, config.json last, so a directory with a config.json is whole. Reading accepts what
transformers 4 and 5 write: safetensors, or ``pytorch_model.bin`` (as weights only: it can't run code), one file or
shards; a model that the transformer can't build is refused with the reason (huggingface_config.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from minimind.base.defaults import ABOUT, TEXT_TEMPERATURE, TEXT_TOP_P
from minimind.base.errors import UserError
from minimind.base.files import path_inside, replacing, write_bytes_durably
from minimind.base.strict.json_text import brief, read_json
from minimind.config.model import ModelConfig
from minimind.interop import model_card
from minimind.interop.huggingface_config import of_minimind, refusals, shape_fields, transformers_config
from minimind.interop.model_card import MARK, Card, may_write, render
from minimind.interop.tokenizer_files import adds_bos, exported_files
from minimind.interop.upstream import read_torch
from minimind.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAKER = "minimind-deepspeed"  # in the weights' header, where transformers looks for "format" only
State = dict[str, Tensor]


def save_pretrained(
    model_state: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    directory: str | Path,
    card: Card | None = None,
) -> None:
    """Write the directory (created if needed; other files in it stay). Weights keep their dtype. Raises OSError.

    Raises UserError where files of these names are not an earlier export's. A README.md that is not ours stays.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    card = card or Card()
    files = {}
    if tokenizer is not None:
        files = exported_files(tokenizer, config.max_position_embeddings, card.trained_on_texts)
    contents = {"generation_config.json": _json(_generation_config(tokenizer)), **files}
    _refuse_others(directory, contents)
    if os.path.lexists(directory / CONFIG):  # not whole until the end, and what was said of the earlier weights is over
        for name in (CONFIG, ABOUT):
            (directory / name).unlink(missing_ok=True)
    weights = {
        name: value.detach().cpu().contiguous() for name, value in model_state.items() if not _tied(name, config)
    }
    with replacing(directory / WEIGHTS) as file:
        save_file(weights, file.name, metadata=_header(tokenizer, files))
        _sort_metadata(Path(file.name))
    about = transformers_config(config, next(iter(weights.values())).dtype) | _special_ids(tokenizer)
    if may_write(directory / model_card.FILE_NAME, MARK):
        bos = tokenizer is not None and adds_bos(files, tokenizer.bos_id)
        contents[model_card.FILE_NAME] = render(card, config, about["torch_dtype"], tokenizer, adds_bos=bos).encode()
    contents[CONFIG] = _json(about)
    for name, content in contents.items():
        write_bytes_durably(directory / name, content)


def _header(tokenizer: Tokenizer | None, files: Mapping[str, bytes]) -> dict[str, str]:
    """What the weights' file says of itself: its maker, and the hash of the tokenizer that the weights belong to, as it
    was and as it lies beside them."""
    hashes = {}
    if tokenizer is not None:
        here = Tokenizer(files, tokenizer.path).fingerprint if not tokenizer.is_sentencepiece else None
        hashes = {"tokenizer": tokenizer.fingerprint, **({"tokenizer_here": here} if here else {})}
    return {"format": "pt", "made_by": MAKER, **hashes}


def _sort_metadata(weights: Path) -> None:
    """Equal models are equal files: safetensors writes its metadata in the order of a hash map, which each process has
    anew. The header (eight bytes of its length, JSON, spaces) stays as long as it is. The file is ``replacing``'s."""
    with weights.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) <= length:  # else it is spelled in another way than today's, and order is not worth a failure
            file.seek(8)
            file.write(text.ljust(length))


def trained_with(directory: Path) -> tuple[str, ...]:
    """The fingerprints of the tokenizer that an export's weights belong to; none where the file doesn't say."""
    try:
        with safe_open(path_inside(directory, WEIGHTS), "pt") as file:
            about = file.metadata() or {}
    except (OSError, SafetensorError):
        return ()
    if about.get("made_by") != MAKER:
        return ()
    return tuple(about[name] for name in ("tokenizer", "tokenizer_here") if name in about)


def _refuse_others(directory: Path, names: Iterable[str]) -> None:
    """UserError where a file would be replaced that is no export's: another model's, or another program's config."""
    there = [name for name in (CONFIG, WEIGHTS, *names) if os.path.lexists(directory / name)]
    if there and not _is_export(directory):
        raise UserError(
            f"{directory}: holds {', '.join(there)}, which no export of this program made; name another directory"
        )


def _is_export(directory: Path) -> bool:
    """By the keys of its config.json; without one (the export was killed) by what the weights say of themselves."""
    try:
        if os.path.lexists(directory / CONFIG):
            ours = transformers_config(read_config(directory / CONFIG), torch.float32)
            return set(_read_json(directory / CONFIG)) == set(ours)
        with safe_open(path_inside(directory, WEIGHTS), framework="pt") as file:
            return bool((file.metadata() or {}).get("made_by") == MAKER)
    except (UserError, OSError, SafetensorError):
        return False


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _tied(name: str, config: ModelConfig) -> bool:
    return config.tie_word_embeddings and name == "lm_head.weight"


def _generation_config(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Answers end with the chat template's last token (ours: <|im_end|>), texts with eos."""
    ids = _special_ids(tokenizer)
    stops = [ids["eos_token_id"]]
    if tokenizer is not None:
        with contextlib.suppress(UserError):  # one for texts only
            stops = tokenizer.stop_ids
    sampling = {"do_sample": True, "temperature": TEXT_TEMPERATURE, "top_p": TEXT_TOP_P}
    return {**ids, "eos_token_id": stops, **sampling}


def _special_ids(tokenizer: Tokenizer | None) -> dict[str, int]:
    """By their names in config.json; without a tokenizer those of ours."""
    if tokenizer is None:
        return {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos")}


def load_pretrained(directory: str | Path) -> tuple[State, ModelConfig]:
    """Weights (as saved, without a tied output projection) and shape. Raises UserError for what can't be ours."""
    directory = Path(directory)
    raw, config = _read_json(directory / CONFIG), read_config(directory / CONFIG)
    state: State = {}
    for name in _weight_files(directory):
        state |= _read_weights(directory, name)
    config = _tied_as_saved(of_minimind(config, raw, state), state)
    dropped = {name for name in state if _tied(name, config) or name.endswith("rotary_emb.inv_freq")}
    return {name: value for name, value in state.items() if name not in dropped}, config


def _tied_as_saved(config: ModelConfig, state: State) -> ModelConfig:
    """Untied where the file has an output projection that isn't the embedding, whatever its config says: so
    transformers 5 loads it (4 took the embedding)."""
    output, embedding = state.get("lm_head.weight"), state.get("model.embed_tokens.weight")
    if not config.tie_word_embeddings or output is None or embedding is None or output.shape != embedding.shape:
        return config
    same = torch.equal(output.float(), embedding.float())
    return config if same else config.model_copy(update={"tie_word_embeddings": False})


def _read_weights(directory: Path, name: str) -> State:
    try:
        file = path_inside(directory, name)
        if not name.endswith(".bin"):
            weights: State = load_file(file)
            return weights
        state = read_torch(file)
        if not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
            raise UserError(f"{directory / name}: holds more than named tensors")
        return state
    except OSError as error:
        raise UserError(f"{directory / name}: can't be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise UserError(f"{directory / name}: can't be read as safetensors ({error})") from error


def _weight_files(directory: Path) -> list[str]:
    """The first kind that there is, in the order in which transformers looks for them."""
    for whole, index in ((WEIGHTS, INDEX), (PICKLE, PICKLE_INDEX)):
        if (directory / whole).is_file():
            return [whole]
        if (directory / index).is_file():
            return _listed(directory, index)
    raise UserError(f"{directory}: neither {WEIGHTS} nor {PICKLE}, nor an index of shards ({INDEX})")


def _listed(directory: Path, index: str) -> list[str]:
    """The shards of an index. UserError for what is no file in the directory, or of another kind than the index."""
    places = _read_json(directory / index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{directory / index}: weight_map is {brief(places)}, not an object of file names by weight")
    suffix = Path(index.removesuffix(".index.json")).suffix
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable() or len(name) > 200:
            raise UserError(f"{directory / index}: weight_map names {brief(name)}, which is no file in this directory")
        if Path(name).suffix != suffix:
            raise UserError(f"{directory / index}: weight_map names {brief(name)}, which is no {suffix} file")
    return sorted(set(places.values()))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path.parent, path.name)
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a JSON object")
    return content


def read_config(path: Path) -> ModelConfig:
    """The shape in a config.json. Raises UserError with every reason why the transformer can't build it."""
    raw = _read_json(path)
    for name in ("rope_parameters", "rope_scaling"):  # transformers 5 keeps theta in the first
        if not isinstance(raw.get(name) or {}, dict):
            raise UserError(f"{path}: {name} is {brief(raw[name])}, not an object")
    if reasons := refusals(raw):
        raise UserError(f"{path}: this model can't be loaded: {'; '.join(reasons)}")
    try:
        return ModelConfig(**shape_fields(raw))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        got = f", not {brief(first['input'])}" if name else ""
        reason = f"{first['msg'].removeprefix('Value error, ')}{got}"
        raise UserError(f"{path}: {f'{name}: {reason}' if name else reason}") from error
