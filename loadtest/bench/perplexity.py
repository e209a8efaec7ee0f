"""Perplexity of a text under the service's own model: shows what quantizing weights or KV cache costs.

    python -m loadtest.bench.perplexity MODEL_FOLDER TEXT... [--quantization fp8] [--kv-cache-dtype fp8]
        [--dtype bfloat16] [--window 512]

The text is cut into windows. Each token is predicted from the tokens before it in its window. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from service.config import CacheConfig, ModelSource
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.runner.load import LoadedModel, load_executor
from service.text.tokenizer import Tokenizer

BLOCK_SIZE = 16


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="perplexity of texts")
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--window", type=int, default=512)
    options = parser.parse_args(arguments)
    source = ModelSource(
        str(options.model),
        None,
        None,
        None,
        "auto",
        options.dtype,
        options.device,
        options.window,
        0,
        quantization=options.quantization,
    )
    cache = CacheConfig(BLOCK_SIZE, 0.9, memory_bytes=256 << 20, dtype=options.kv_cache_dtype)
    loaded = load_executor(source, options.model, cache, 2, options.window, enforce_eager=True)
    text = "\n".join(file.read_text(encoding="utf-8") for file in options.texts)
    token_ids = Tokenizer.from_folder(options.model).encode(text, add_special_tokens=False)
    value = perplexity(loaded, token_ids, options.window)
    result = {"model": str(options.model), "quantization": loaded.quantization, "dtype": loaded.dtype}
    result["kv_cache_dtype"] = options.kv_cache_dtype
    print(json.dumps(result | {"tokens": len(token_ids), "perplexity": value}))


def perplexity(loaded: LoadedModel, token_ids: Sequence[int], window: int) -> float:
    total, count = 0.0, 0
    for first in range(0, len(token_ids) - 1, window):
        logprobs = _logprobs(loaded, tuple(token_ids[first : first + window]))
        total += sum(logprobs)
        count += len(logprobs)
    return math.exp(-total / count)


def _logprobs(loaded: LoadedModel, token_ids: tuple[int, ...]) -> list[float]:
    """Log probabilities of all tokens but the first."""
    params = SamplingParams(max_tokens=1, temperature=0.0, num_prompt_logprobs=0)
    blocks = tuple(range(-(-len(token_ids) // BLOCK_SIZE)))
    sequence = ScheduledSequence(1, 1, token_ids, 0, 0, blocks, params, (Sample(1, 0),), targets=token_ids[1:])
    result = loaded.runner.launch(IterationPlan((sequence,))).wait()
    loaded.runner.launch(IterationPlan((), released=(1,))).wait()
    return [entry.chosen for _, entries in result.prompt_logprobs for entry in entries]


if __name__ == "__main__":
    main()
