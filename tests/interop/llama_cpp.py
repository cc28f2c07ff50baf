"""Asks llama.cpp about a GGUF file: run as a script, in a process of its own. stdin: JSON, stdout: its last line.

``{"model": path, "texts": [...], "prompts": [[ids], ...], "chat": [messages], "probabilities": 20}`` -> ``{"tokens",
"answers", "top", "prompt"}``: ids of the texts, greedy ids after the prompts, the likeliest ids of the next token and
their log probabilities, and the string and ids of the chat prompt.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import xllamacpp


def serve(model: str) -> xllamacpp.Server:
    """One slot, one thread, keys and values in fp32."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def main() -> None:
    task = json.load(sys.stdin)
    server = serve(task["model"])

    def post(path: str, body: dict[str, Any]) -> Any:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(server.listening_address + path, data, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return json.load(opener.open(request, timeout=task["patience"]))

    def complete(ids: list[int], count: int, **more: Any) -> Any:
        body = {"prompt": ids, "n_predict": count, "temperature": 0, "return_tokens": True, "cache_prompt": False}
        return post("/completion", {**body, **more})

    def likeliest(ids: list[int]) -> list[tuple[int, float]]:
        first = complete(ids, 1, n_probs=task.get("probabilities", 20), ignore_eos=True)["completion_probabilities"][0]
        return [(item["id"], item["logprob"]) for item in first["top_logprobs"]]

    prompt = post("/apply-template", {"messages": task["chat"]})["prompt"] if task["chat"] else ""
    chat = {"content": prompt, "add_special": True, "parse_special": True}
    texts = [{"content": text, "add_special": False, "parse_special": False} for text in task["texts"]]
    result = {
        "tokens": [post("/tokenize", body)["tokens"] for body in texts],
        "answers": [complete(ids, 40)["tokens"] for ids in task["prompts"]],
        "top": [likeliest(ids) for ids in task["prompts"]],
        "prompt": [prompt, post("/tokenize", chat)["tokens"]],
    }
    print("\n" + json.dumps(result))


main()
