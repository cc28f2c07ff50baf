"""lm-eval over `minimind serve` (``local-completions``) beside its ``--model hf`` on the same export, item by item.

    pip install 'lm-eval[api,hf]' in an environment of its own, which is no part of ours
    python benchmarks/lm_eval_server.py --lm-eval VENV/bin/lm_eval [--preset tiny] [--questions 40]

A model with random weights answers multiple-choice questions of random words by log-likelihood. Both sides are told
``add_bos_token=True``. Prints the largest difference between two log-likelihoods of the same choice, how many of the
greedy flags and of the chosen answers agree, and both accuracies; ends with 1 where an answer or an accuracy differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.serving import export, served
from minimind.model.transformer import PRESETS

TASK = """task: choices
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WORDS = ["river", "hill", "sun", "moon", "tree", "stone", "bird", "fish"]


def write_task(directory: Path, count: int) -> None:
    draw = random.Random(1)
    data = directory / "questions.jsonl"
    records = [
        {"question": " ".join(draw.choices(WORDS, k=6)), "choices": draw.sample(WORDS, 4), "answer": draw.randrange(4)}
        for _ in range(count)
    ]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    (directory / "choices.yaml").write_text(TASK.replace("DATA", str(data)))


def scored(program: Path, directory: Path, name: str, *model: str) -> dict[int, list[tuple[float, bool]]]:
    """What lm-eval heard of each choice of each question."""
    command = [program, *model, "--tasks", "choices", "--include_path", directory, "--log_samples"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    environment.pop("PYTHONPATH", None)
    run = subprocess.run(
        [*map(str, command), "--output_path", str(directory / name)], env=environment, capture_output=True, text=True
    )
    if run.returncode:
        sys.exit(f"{name}: lm_eval ended with {run.returncode}\n{run.stderr[-3000:]}")
    (samples,) = (directory / name).rglob("samples*.jsonl")
    records = map(json.loads, samples.read_text().splitlines())
    return {one["doc_id"]: [(float(value), str(flag) == "True") for value, flag in _pairs(one)] for one in records}


def _pairs(record: dict[str, Any]) -> list[list[Any]]:
    pairs: list[list[Any]] = record["filtered_resps"]
    return pairs


def best(choices: list[tuple[float, bool]]) -> int:
    return max(range(len(choices)), key=lambda i: choices[i][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm-eval", type=Path, required=True, help="its program")
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--saved-dtype", default="float32")
    parser.add_argument("--questions", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        export(directory, options)
        write_task(directory, options.questions)
        model = directory / "model"
        hf = f"pretrained={model},dtype=float32,add_bos_token=True"
        theirs = scored(options.lm_eval, directory, "hf", "--model", "hf", "--model_args", hf, "--device", "cpu")
        with served(model, 1) as port:
            address = f"base_url=http://127.0.0.1:{port}/v1/completions,tokenizer_backend=huggingface"
            api = f"model=model,{address},tokenizer={model},add_bos_token=True,num_concurrent=4,max_retries=1"
            ours = scored(options.lm_eval, directory, "api", "--model", "local-completions", "--model_args", api)
    pairs = [(a, b) for i in theirs for a, b in zip(ours[i], theirs[i], strict=True)]
    agree = sum(best(ours[i]) == best(theirs[i]) for i in theirs)
    print(f"largest difference of a log-likelihood {max(abs(a[0] - b[0]) for a, b in pairs):.2e}")
    flags = sum(a[1] == b[1] for a, b in pairs)
    print(f"greedy flags: {flags} of {len(pairs)} agree; answers: {agree} of {len(theirs)}")
    sys.exit(agree != len(theirs))


if __name__ == "__main__":
    main()
