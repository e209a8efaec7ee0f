"""What one GPU serves, two of them serve, from outside: the same fp32 text by tensor parallelism and in stages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import httpx
import pytest

from service.settings.quickstart import QUICKSTART_ADAPTERS
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_hasty_threads import whole
from tests.e2e.test_tensor_parallel import GREEDY, PROMPTS, needs_gpus

pytestmark = [pytest.mark.gpu, needs_gpus(2)]

TWO = ["--tensor-parallel-size 2", "--pipeline-parallel-size 2"]
SMALL = "--dtype float32 --max-num-seqs 16 --max-num-batched-tokens 64"
ROOMY_KIB, SCARCE_KIB = 4096, 1128

SAME_TEXT = {
    "adapters": f"--lora-dir {QUICKSTART_ADAPTERS}",
    "drafts": "--speculation ngram",
    "fp8 cache": "--kv-cache-dtype fp8",
    "swapped": "--preemption swap --swap-space 8MiB",
    "computed again": "--preemption recompute",
    "one iteration at a time": "--no-overlap",
    "transformers' modules": "--model-impl transformers",
}


def texts(flags: str, at_once: int = 8) -> list[str]:
    """Of all prompts, by every model that a server with these flags has."""
    with (
        ServerProcess(*SMALL.split(), *flags.split()) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
        ThreadPoolExecutor(at_once) as pool,
    ):
        models = [model["id"] for model in http.get("/v1/models").json()["data"]]
        bodies = [{**GREEDY, "model": model, "prompt": prompt} for model in models for prompt in PROMPTS]
        answers = list(pool.map(lambda body: whole(http, "/v1/completions", body), bodies))
    return [answer["choices"][0]["text"] for answer in answers]


def memory(feature: str, num_gpus: int) -> str:
    """As many blocks on two GPUs as on one, each of half the size."""
    kib = SCARCE_KIB if "preemption" in SAME_TEXT[feature] else ROOMY_KIB
    return f"--kv-cache-memory {kib // num_gpus}KiB"


@cache
def of_one_gpu(feature: str) -> list[str]:
    return texts(f"{memory(feature, 1)} {SAME_TEXT[feature]}")


@pytest.mark.parametrize("feature", SAME_TEXT)
@pytest.mark.parametrize("two", TWO)
def test_two_gpus_say_what_one_says(two: str, feature: str):
    assert texts(f"{memory(feature, 2)} {two} {SAME_TEXT[feature]}") == of_one_gpu(feature)


@pytest.mark.parametrize(("flags", "at_once"), [("--quantization fp8", 1), ("--deterministic", 8)])
@pytest.mark.parametrize("two", TWO)
def test_what_rounds_otherwise_in_parts_says_the_same_twice(two: str, flags: str, at_once: int):
    said = [texts(f"--kv-cache-memory 2MiB {two} --dtype bfloat16 {flags}", at_once) for _ in range(2)]
    assert said[0] == said[1] and all(said[0])
