"""transformers' LlamaForCausalLM of a preset's shape with our initial weights, and documents grouped for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.workers import Job
from minimind.data.store.batches import Batches, SequentialBatches
from minimind.data.store.store import TokenStore
from minimind.interop.huggingface_config import transformers_config
from minimind.model.transformer import ModelConfig, Transformer
from minimind.training.run.evaluation import evaluate


def model_config(job: Job) -> ModelConfig:
    return ModelConfig.preset(job.preset, vocab_size=job.vocab_size)


def new_llama(job: Job) -> Any:
    """In fp32, as both Hugging Face Trainer and MiniMind hold their weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model_config(job)
    settings = transformers_config(config, torch.float32)
    del settings["torch_dtype"]
    llama = LlamaForCausalLM(LlamaConfig(**settings))
    llama.load_state_dict(Transformer(config, seed=job.seed).state_dict(), strict=False)
    llama.tie_weights()
    return llama


def held_out(llama: Any, job: Job) -> dict[str, Any]:
    """Loss and bits per byte through our own model and evaluation, in fp32: one yardstick for every side."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Transformer(model_config(job), seed=None).to(device)
    state = {name: value for name, value in llama.state_dict().items() if name in model.state_dict()}
    model.load_state_dict(state)
    return held_out_of(model, job)


def held_out_of(model: Transformer, job: Job) -> dict[str, Any]:
    """Loss and bits per byte of one of our models, in its own precision."""
    store, device = TokenStore.open(job.held_out), model.output_weight.device
    result = evaluate(model, SequentialBatches(store, job.row_length, job.micro_batch), device, 0, store.num_bytes)
    return {"loss": result.loss, "bits_per_byte": result.bits_per_byte}


def documents(job: Job, longest: int) -> list[list[int]]:
    """Shuffled training documents, cut at ``longest`` tokens with the eos kept; or full packed rows of tokens."""
    store = TokenStore.open(job.train)
    if job.documents == "rows":
        batches = Batches(store, job.row_length, job.micro_batch, accumulation=1, world_size=1, seed=job.seed)
        return [row for step in range(job.total_steps) for row in batches.micro_batches(step, 0)[0].input_ids.tolist()]
    order = np.random.default_rng(job.seed).permutation(len(store))
    return [cut(store.document(int(index)).tolist(), longest) for index in order]


def cut(ids: list[int], longest: int) -> list[int]:
    """``ids`` without what lies between ``longest`` - 1 tokens and its last one."""
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]


def documents_per_step(job: Job, texts: Sequence[Sequence[int]]) -> int:
    """How many documents train on as many tokens as one of our steps (micro_batch full rows)."""
    if job.documents == "rows":
        return job.micro_batch
    mean = float(np.mean([len(ids) - 1 for ids in texts]))
    return max(1, round(job.micro_batch * job.row_length / mean))
