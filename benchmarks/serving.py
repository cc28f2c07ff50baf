"""The server beside its own engine: one client and 16, whole and streamed, and ``generate_batch`` without a server.

    python benchmarks/serving.py [--preset 26m] [--saved-dtype bfloat16] [--new-tokens 128] [--threads N] [--rounds 5]
        [--clients 16] [--json OUT]

A model with random weights is exported, and served by `minimind serve` with ``--threads`` (all cores but one, which is
the clients'); ``generate_batch`` runs in this process with as many while the server is idle. Prompts of 64 tokens,
temperature 0.7, top-p 0.95. Rounds alternate, so that a noisy machine hits all forms; medians of tokens a second are
printed, the median of each round's ratio to one client, and that of the best rounds, which other programs disturb
least. Answers of 16 at once are compared with those alone. All the while `/health` is asked, a hundred times a second.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from minimind.inference.generation import Sampling, generate_batch
from minimind.inference.loading import load_model
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import PRESETS, ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer

HOW: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95}


def export(directory: Path, options: argparse.Namespace) -> None:
    """A model of random weights with a tokenizer of random words."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucmfw", k=draw.randint(2, 9))) for _ in range(9000)]
    texts = [" ".join(draw.choices(words, k=12)) for _ in range(6000)]
    config = ModelConfig.preset(options.preset, initializer_range=0.05)
    tokenizer = Tokenizer.load(train_tokenizer(texts, directory, vocab_size=config.vocab_size))
    state = Transformer(config, seed=0).to(getattr(torch, options.saved_dtype)).state_dict()
    save_pretrained(state, config, tokenizer, directory / "model")


@contextmanager
def served(model: Path, threads: int) -> Iterator[int]:
    """The port of a running server."""
    command = [sys.executable, "-m", "minimind.cli", "serve", str(model), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        server.terminate()
        server.wait()


def answer(port: int, prompt: list[int], count: int, seed: int, stream: bool) -> str:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"prompt": prompt, "max_tokens": count, "seed": seed, "stream": stream, **HOW}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    data = connection.getresponse().read().decode()
    connection.close()
    if not stream:
        return str(json.loads(data)["choices"][0]["text"])
    events = [json.loads(line.removeprefix("data: ")) for line in data.split("\n\n") if line.startswith("data: {")]
    return "".join(event["choices"][0]["text"] for event in events)


def at_once(port: int, prompts: list[list[int]], count: int, stream: bool) -> list[str]:
    """A client for each prompt."""
    with ThreadPoolExecutor(len(prompts)) as clients:
        asked = [clients.submit(answer, port, prompt, count, i, stream) for i, prompt in enumerate(prompts)]
        return [each.result() for each in asked]


@contextmanager
def asking_health(port: int) -> Iterator[list[float]]:
    """Seconds that `/health` took, filled meanwhile."""
    seconds: list[float] = []
    end = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while not end.wait(0.01):
            start = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            seconds.append(time.perf_counter() - start)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield seconds
    finally:
        end.set()
        asker.join()


def compare(port: int, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(0)
    transformer, _ = load_model(model)
    size = transformer.config.vocab_size
    prompts = [[draw.randrange(300, size) for _ in range(64)] for _ in range(options.clients)]
    count = options.new_tokens
    together = f"{options.clients} clients"
    forms: dict[str, Callable[[], Any]] = {
        "one client": lambda: at_once(port, prompts[:1], count, False),
        together: lambda: at_once(port, prompts, count, False),
        "one, streamed": lambda: at_once(port, prompts[:1], count, True),
        f"{together}, streamed": lambda: at_once(port, prompts, count, True),
        "generate_batch": lambda: generate_batch(transformer, prompts, Sampling(count, **HOW)),
    }
    rows = {name: 1 if name.startswith("one") else options.clients for name in forms}
    alone = [answer(port, prompt, count, i, False) for i, prompt in enumerate(prompts)]
    both = (forms[together], forms[f"{together}, streamed"])
    same = [sum(a == b for a, b in zip(form(), alone, strict=True)) for form in both]
    forms["generate_batch"]()
    speeds: dict[str, list[float]] = {name: [] for name in forms}
    with asking_health(port) as health:
        for _ in range(options.rounds):
            for name, form in forms.items():
                start = time.perf_counter()
                form()
                speeds[name].append(rows[name] * count / (time.perf_counter() - start))
    return {"same_answers": same, "speeds": speeds, "health": sorted(health)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="26m", choices=PRESETS)
    parser.add_argument("--saved-dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        export(Path(directory), options)
        with served(Path(directory) / "model", options.threads) as port:
            found = compare(port, Path(directory) / "model", options)
    one, health = found["speeds"]["one client"], found["health"]
    for name, speeds in found["speeds"].items():
        ratios = [a / b for a, b in zip(speeds, one, strict=True)]
        print(
            f"{name:22s} {statistics.median(speeds):7.1f} tokens/s   of one client {statistics.median(ratios):5.2f} "
            f"(best rounds {max(speeds) / max(one):5.2f})"
        )
    print(f"same answers as alone: {found['same_answers']} of {options.clients}; load {os.getloadavg()[0]:.1f}")
    places = {"median": len(health) // 2, "99%": len(health) * 99 // 100, "worst": -1}
    told = ", ".join(f"{name} {1000 * health[place]:.1f} ms" for name, place in places.items())
    print(f"/health of {len(health)}: {told}")
    if options.json:
        options.json.write_text(json.dumps({**vars(options), **found}, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
