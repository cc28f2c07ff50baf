"""Generation against transformers' generate: the same saved model, prompts and greedy tokens, single and batch 16.

    python benchmarks/generate.py [--preset 26m] [--saved-dtype bfloat16] [--dtype D] [--new-tokens 128]
        [--temperature 0] [--rounds 5] [--json OUT]

A model with random weights is exported in ``--saved-dtype``; each side loads that directory as it does by default
(transformers 5 keeps the saved precision, ``load_model`` keeps it on a GPU and takes fp32 on a CPU); ``--dtype`` makes
both compute in one. Rounds
alternate, so that a noisy machine hits both; medians of wall time and of the ratio are printed, and the
ratio of the two best rounds, which other programs disturb least. Prompts have
unequal lengths in the batch (left-padded in both). It counts how many answers are the same: all of them in fp32,
few where one side rounds to half. With ``--temperature`` both sample, with top-p 0.95, and no answers are the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from minimind.inference.generation import Sampling, generate, generate_batch
from minimind.inference.loading import build, default_dtype
from minimind.interop.huggingface import load_pretrained, save_pretrained
from minimind.model.transformer import PRESETS, ModelConfig, Transformer

Answers = list[list[int]]


def load_both(directory: Path, options: argparse.Namespace) -> tuple[Transformer, Any]:
    """Export random weights, then load them twice."""
    from transformers import AutoModelForCausalLM

    config = ModelConfig.preset(options.preset, initializer_range=0.05)
    state = Transformer(config, seed=0).to(getattr(torch, options.saved_dtype)).state_dict()
    save_pretrained(state, config, None, directory)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(*load_pretrained(directory), directory)
    llama = AutoModelForCausalLM.from_pretrained(directory)
    dtype = getattr(torch, options.dtype) if options.dtype else None
    return model.to(device=device, dtype=dtype or default_dtype(device)).eval(), llama.to(device, dtype).eval()


def make_prompts(count: int, vocab: int) -> list[list[int]]:
    """Lengths 64, 61, 58, ...: unequal unless there is only one."""
    generator = torch.Generator().manual_seed(0)
    lengths = [64 - 3 * i for i in range(count)]
    return [torch.randint(6, vocab, (length,), generator=generator).tolist() for length in lengths]


def ours(model: Transformer, prompts: list[list[int]], count: int, temperature: float) -> Answers:
    if len(prompts) == 1:
        return [list(generate(model, prompts[0], Sampling(count, temperature=temperature, top_p=0.95)))]
    return generate_batch(model, prompts, Sampling(count, temperature=temperature, top_p=0.95))


def theirs(llama: Any, prompts: list[list[int]], count: int, temperature: float) -> Answers:
    longest, device = max(map(len, prompts)), llama.device
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_p": 0.95, "top_k": 0}
    with torch.inference_mode():
        out = llama.generate(ids, attention_mask=mask, max_new_tokens=count, eos_token_id=None, pad_token_id=0, **how)
    return [row[longest:] for row in out.tolist()]


def measure(forms: dict[str, Callable[[], Answers]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each form in each round, alternating."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, form in forms.items():
            start = time.perf_counter()
            form()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def compare(model: Transformer, llama: Any, batch: int, count: int, temperature: float, rounds: int) -> dict[str, Any]:
    prompts = make_prompts(batch, model.config.vocab_size)
    forms = {
        "minimind": lambda: ours(model, prompts, count, temperature),
        "transformers": lambda: theirs(llama, prompts, count, temperature),
    }
    a, b = forms["minimind"](), forms["transformers"]()  # warm-up, and the check
    same = sum(x == y for x, y in zip(a, b, strict=True))
    seconds = measure(forms, rounds)
    speed = {name: batch * count / statistics.median(values) for name, values in seconds.items()}
    ratios = [t / o for o, t in zip(seconds["minimind"], seconds["transformers"], strict=True)]
    best = min(seconds["transformers"]) / min(seconds["minimind"])
    return {
        "batch": batch,
        "same_answers": f"{same}/{batch}",
        "tokens_per_second": speed,
        "ratio": statistics.median(ratios),
        "ratio_of_best": best,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="26m", choices=PRESETS)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--saved-dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="instead of each side's default")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model, llama = load_both(Path(directory), options)
    print(f"minimind in {model.output_weight.dtype}, transformers in {llama.dtype}, {torch.get_num_threads()} threads")
    results = []
    for batch in (1, 16):
        result = compare(model, llama, batch, options.new_tokens, options.temperature, options.rounds)
        results.append(result)
        speeds = "   ".join(f"{name} {speed:7.1f} tokens/s" for name, speed in result["tokens_per_second"].items())
        print(
            f"batch {batch:2d}   {speeds}   ratio {result['ratio']:.2f} (best rounds {result['ratio_of_best']:.2f})   "
            f"same answers {result['same_answers']}"
        )
    if options.json:
        about = {
            "preset": options.preset,
            "saved": options.saved_dtype,
            "temperature": options.temperature,
            "device": str(model.output_weight.device),
        }
        about["threads"] = torch.get_num_threads()
        options.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
