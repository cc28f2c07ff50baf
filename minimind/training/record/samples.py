"""What the model makes of the prompts of ``samples:``, after each evaluation: ``samples.jsonl`` in the run.

Contract. A row is ``{"step": .., "prompt": .., "text": ..}``. Training is not touched: rank 0 answers from a copy of
the weights, with random numbers of its own, and a resumed run's file is cut back to the step that it goes on from.
Nothing in here stops a run: what fails becomes one finding. Weakness: the other ranks wait for rank 0.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minimind.base.defaults import SAMPLES, Kind
from minimind.base.errors import UserError
from minimind.base.files import append_to, read_inside, write_bytes_durably
from minimind.base.findings import Finding
from minimind.base.strict.json_text import is_count, parse_json
from minimind.config.run import RunConfig
from minimind.inference.generation import generate_batch
from minimind.inference.loading import build, default_dtype
from minimind.inference.sampling import Sampling
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer


class Written(NamedTuple):
    """What one evaluation's samples cost: ``tokens`` were generated, for ``seconds`` all ranks waited."""

    step: int
    texts: int
    tokens: int
    seconds: float


class Sampler:
    """Answers a run's prompts. UserError for one that leaves no room for an answer."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer, kind: Kind) -> None:
        self._config, self._tokenizer, asked = config, tokenizer, config.samples
        self._sampling = Sampling(asked.max_new_tokens, asked.temperature, asked.top_p, seed=asked.seed)
        self._ids = [_ids(prompt, tokenizer, kind) for prompt in asked.prompts]
        self._stops = tokenizer.stop_ids if kind == "sft" else [tokenizer.eos_id]
        limit = config.model.max_position_embeddings
        for prompt, ids in zip(asked.prompts, self._ids, strict=True):
            if len(ids) >= limit:
                raise UserError(
                    f"{config.place('samples')}: the prompt {prompt[:20]!r} has {len(ids)} tokens, the model's limit "
                    f"is {limit}: shorten it"
                )

    def write(self, step: int, weights: dict[str, Tensor], device: torch.device) -> Written | Finding:
        """Add a row for each prompt, answered by ``weights``. Rank 0 only."""
        begun, prompts = time.monotonic(), self._config.samples.prompts
        try:
            model = build(weights, self._config.model, self._config.output_dir)
            model.output_size = self._tokenizer.vocab_size
            model.to(device=device, dtype=default_dtype(device)).eval()
            answers = generate_batch(model, self._ids, self._sampling, stop_ids=self._stops)
            texts = [self._tokenizer.decode(ids) for ids in answers]
            _append(self._config.output_dir, step, list(zip(prompts, texts, strict=True)))
        except (UserError, OSError, torch.OutOfMemoryError) as error:
            reason = str(error).partition("\n")[0]
            return Finding("samples-not-written", reason, "training goes on without them", step=step)
        return Written(step, len(texts), sum(map(len, answers)), round(time.monotonic() - begun, 3))


def _ids(prompt: str, tokenizer: Tokenizer, kind: Kind) -> list[int]:
    if kind == "sft":
        return prompt_ids([Turn("user", prompt)], tokenizer)
    return [tokenizer.bos_id, *tokenizer.encode(prompt)]


def _append(run_dir: Path, step: int, rows: list[tuple[str, str]]) -> None:
    lines = [json.dumps({"step": step, "prompt": p, "text": t}, ensure_ascii=False) + "\n" for p, t in rows]
    with append_to(run_dir / SAMPLES) as file:
        file.write("".join(lines).encode("utf-8"))


def cut_back(run_dir: Path, step: int) -> None:
    """Keep the rows up to ``step``, where a run goes on. Raises OSError. Rank 0 only."""
    if not os.path.lexists(run_dir / SAMPLES):
        return
    lines = read_inside(run_dir, SAMPLES).splitlines(keepends=True)
    write_bytes_durably(run_dir / SAMPLES, b"".join(line for line in lines if _is_upto(line, step)))


def _is_upto(line: bytes, step: int) -> bool:
    try:
        row = parse_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return False
    return isinstance(row, dict) and is_count(row.get("step")) and row["step"] <= step
