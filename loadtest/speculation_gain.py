"""Gain of n-gram speculation on several kinds of text: one engine with it and one without, same model, taking turns.

    python -m loadtest.speculation_gain --model FOLDER [--rounds 3] [--streams 1] [--max-tokens 128]

Without HTTP. Measured are the seconds of decoding alone, from the first token on, as the minimum over the rounds; and,
for busy machines, the median over the rounds of the ratio of CPU times. The kinds: text that copies (give back a file
with a small change), an answer about a text, and free text. Greedy; the tokens of both engines are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from service.composition.engine_assembly import make_engine
from service.composition.model_parts import ModelParts, load_model_parts
from service.core.clock import MonotonicClock
from service.core.events import FinalEvent, TokenEvent
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.stats import RequestStats
from service.engine.engine import Engine
from service.engine.outbox import one_by_one
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.settings.settings import Settings

_ROOT = Path(__file__).parents[1]
_CODE = (_ROOT / "service" / "kvcache" / "block_pool.py").read_text(encoding="utf-8")[:1800]
_PAGE = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")[:2400]
PROMPTS = {
    "copies": f"Repeat this file exactly, but call the class Pool:\n\n```python\n{_CODE}\n```",
    "quotes": f"Summarize the following page in a list of its main points.\n\n{_PAGE}",
    "free": "Write a story about a lighthouse keeper who finds a door at the bottom of the sea.",
    "facts": "Explain how a water mill works, and why people built so many of them.",
}


class Turn(NamedTuple):
    """One engine's run. token_ids: per stream. seconds, cpu_s: elapsed and process CPU time from when every stream had
    its first token to the end of the last. stats: per request."""

    token_ids: list[tuple[int, ...]]
    seconds: float
    cpu_s: float
    stats: list[RequestStats]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.speculation_gain", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1", help="numbers of concurrent streams, comma-separated; default: 1")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--kv-cache-memory", default="1GiB")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    settings = Settings(
        model=options.model,
        speculation="ngram",
        num_speculative_tokens=options.num_speculative_tokens,
        kv_cache_memory=options.kv_cache_memory,
        dtype=options.dtype,
        enable_prefix_caching=False,
    )
    clock, recorder = MonotonicClock(), Recorder(Instruments(CollectorRegistry()))
    parts = load_model_parts(settings, recorder, clock)
    plain = settings.model_copy(update={"speculation": "none"})
    engines = {name: make_engine(each, parts, recorder, clock)[0] for name, each in _both(plain, settings)}
    print(f"# {parts.loaded.device}, {options.model}, {options.rounds} rounds, {options.max_tokens} tokens a stream")
    for num_streams in map(int, options.streams.split(",")):
        for kind, prompt in PROMPTS.items():
            prompts = [_ids(parts, prompt + " " * i) for i in range(num_streams)]
            print(json.dumps(_compared(engines, kind, prompts, options.rounds, options.max_tokens)), flush=True)
    return 0


def _both(plain: Settings, speculating: Settings) -> Iterator[tuple[str, Settings]]:
    yield "plain", plain
    yield "ngram", speculating


def _ids(parts: ModelParts, prompt: str) -> tuple[int, ...]:
    assert parts.template is not None, "a chat model"
    text = parts.template.render([{"role": "user", "content": prompt}], add_generation_prompt=True)
    return tuple(parts.tokenizer.encode(text, add_special_tokens=False))


def _compared(
    engines: dict[str, Engine], kind: str, prompts: list[tuple[int, ...]], rounds: int, max_tokens: int
) -> dict[str, object]:
    turns: dict[str, list[Turn]] = {name: [] for name in engines}
    for number in range(rounds + 1):  # the first is not counted: kernels are compiled, CUDA graphs captured
        for name in sorted(engines, reverse=bool(number % 2)):
            turns[name].append(_turn(engines[name], prompts, max_tokens))
    seconds = {
        name: min(turn.seconds for turn in of[1:]) for name, of in turns.items()
    }  # the minimum, since other work on the machine only adds time
    by_cpu = [one.cpu_s / other.cpu_s for one, other in zip(turns["plain"][1:], turns["ngram"][1:], strict=True)]
    last = turns["ngram"][-1]
    num_tokens = sum(map(len, last.token_ids)) - len(prompts)
    drafted, accepted = (sum(getattr(s, name) for s in last.stats) for name in ("num_drafted", "num_accepted"))
    return {
        "kind": kind,
        "streams": len(prompts),
        "tokens": num_tokens,
        "same_tokens": all(turn.token_ids == turns["plain"][0].token_ids for of in turns.values() for turn in of),
        "drafted": drafted,
        "accepted": accepted,
        "iterations_each": round(statistics.mean(s.num_iterations for s in last.stats), 1),
        "plain_ms_a_token": round(1e3 * seconds["plain"] * len(prompts) / num_tokens, 2),
        "ngram_ms_a_token": round(1e3 * seconds["ngram"] * len(prompts) / num_tokens, 2),
        "faster": round(seconds["plain"] / seconds["ngram"], 3),
        "faster_by_cpu_time": round(statistics.median(by_cpu), 3),
    }


def _turn(engine: Engine, prompts: list[tuple[int, ...]], max_tokens: int) -> Turn:
    sampling = SamplingParams(max_tokens, temperature=0.0)
    requests = [Request(f"stream-{i}", prompt, sampling, 0.0) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.requests.add(request)
    token_ids: dict[str, list[int]] = {request.request_id: [] for request in requests}
    stats: dict[str, RequestStats] = {}
    first_s = first_cpu_s = 0.0
    while engine.has_work:
        engine.step()
        for request_id, event in one_by_one(engine.requests.events.take()):
            if isinstance(event, FinalEvent):
                stats[request_id] = event.stats
            elif isinstance(event, int | TokenEvent):
                token_ids[request_id].append(event if isinstance(event, int) else event.token_id)
        if not first_s and all(token_ids.values()):
            first_s, first_cpu_s = time.perf_counter(), time.process_time()
    seconds, cpu_s = time.perf_counter() - first_s, time.process_time() - first_cpu_s
    return Turn([tuple(ids) for ids in token_ids.values()], seconds, cpu_s, list(stats.values()))


if __name__ == "__main__":
    sys.exit(main())
