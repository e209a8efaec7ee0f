"""How well routers use the replicas' prefix caches: HAProxy's leastconn beside vllm-router, in front of two replicas.

`python -m loadtest.compare_routers` (HAProxy is Debian's; vllm-router is installed by `pip install vllm-router`, in any
environment on PATH). Each chat begins with one of several system prompts. All of them together do not fit in one
replica's KV cache, but do fit in two. The routers take turns, with new prompts in every round. Hit rate: prompt tokens
found / prompt tokens looked up, by the replicas' own counters. TTFT is measured at the client. A router that is not
installed is skipped, and the output says so.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median

import numpy as np

from loadtest.arrivals import PoissonArrivals
from loadtest.headrace_server import headrace_server
from loadtest.metrics import RunLabels, summarize
from loadtest.prompts import BodyOptions
from loadtest.random_streams import random_stream
from loadtest.routers import CACHE_AWARE, kv_aware, kv_event_flags, program, running_haproxy, running_vllm_router
from loadtest.runner import LoadPlan, run_load
from loadtest.server_metrics import read_metrics
from loadtest.server_process import free_port
from loadtest.table import aligned
from loadtest.trace import TraceRequest, with_arrivals
from loadtest.workload import SharedPrefix, draw, shared_prefix

LEASTCONN, CACHE, KV = "haproxy leastconn", "vllm-router cache_aware", "vllm-router kv_aware"
_SOUGHT, _FOUND = "headrace_prefix_cache_queried_tokens_total", "headrace_prefix_cache_hit_tokens_total"
_MODEL = "headrace-quickstart"
_WORDS = ("block", "cache", "token", "queue", "batch", "key", "value", "step", "prompt", "answer", "model", "layer")

Router = Callable[[], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a round, in `num_groups` groups with a system prompt of about `prefix_len` tokens each."""

    num_requests: int = 160
    request_rate: float = 4.0
    num_groups: int = 8
    prefix_len: int = 512

    def requests(self, round_number: int) -> tuple[TraceRequest, ...]:
        """Lengths, groups and arrival times are the same in every round; the words differ."""
        shared = SharedPrefix(self.prefix_len, self.num_groups)
        drawn = draw(dataclasses.replace(shared_prefix(), shared_prefix=shared), self.num_requests, seed=0)
        texts = [_prompt(request, round_number) for request in drawn]
        asked = [
            dataclasses.replace(request, prompt_text=text, output_len=16)
            for request, text in zip(drawn, texts, strict=True)
        ]
        due = PoissonArrivals(self.request_rate).arrival_times(self.num_requests, random_stream(0, "arrivals"))
        return tuple(with_arrivals(asked, due.tolist()))


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one round. hit_rate: of prompt tokens. shares: each replica's share of all prompt tokens."""

    hit_rate: float
    median_ttft_ms: float
    p90_ttft_ms: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """kv_endpoints: where the replica publishes and replays KV events; None without the extra `kv-events`."""

    url: str
    kv_endpoints: tuple[str, str] | None


@contextlib.contextmanager
def replicas(count: int, flags: Sequence[str]) -> Iterator[list[Replica]]:
    """`count` ready Headrace servers with these flags. Raises ServerDidNotStartError."""
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(count):
            endpoints = _kv_endpoints() if find_spec("zmq") and find_spec("msgpack") else None
            events = kv_event_flags(*endpoints) if endpoints else ()
            log = stack.enter_context(tempfile.TemporaryFile())
            server = stack.enter_context(headrace_server([*flags, *events], log))
            started.append(Replica(f"http://127.0.0.1:{server.port}", endpoints))
        yield started


def routers(behind: Sequence[Replica]) -> tuple[dict[str, Router], dict[str, str]]:
    """The routers that can run here, by name; and for each of the others, by name, why it cannot."""
    urls = [replica.url for replica in behind]
    found: dict[str, Router] = {}
    left_out: dict[str, str] = {}
    if program("haproxy"):
        found[LEASTCONN] = lambda: running_haproxy(urls)
    else:
        left_out[LEASTCONN] = "haproxy is not installed"
    if not program("vllm-router"):
        return found, left_out | dict.fromkeys((CACHE, KV), "vllm-router is not installed")
    found[CACHE] = lambda: running_vllm_router(urls, CACHE_AWARE)
    endpoints = {replica.url: replica.kv_endpoints for replica in behind if replica.kv_endpoints}
    if endpoints:
        found[KV] = lambda: running_vllm_router(urls, kv_aware(_MODEL, endpoints))
    else:
        left_out[KV] = "the extra kv-events is not installed"
    return found, left_out


def measured(router: Router, behind: Sequence[Replica], requests: tuple[TraceRequest, ...]) -> Figures:
    """Measure one round. Raises RuntimeError if a request failed."""
    options = BodyOptions(_MODEL, endpoint_type="openai-chat")
    before = [read_metrics(replica.url) for replica in behind]
    with router() as base_url:
        outcome = run_load(LoadPlan(base_url, requests, options, warmup_requests=0))
    result = summarize(outcome, RunLabels("openai-chat", "headrace", options.model), percentiles=(90,))
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} of {len(requests)} requests failed: {result['errors_by_kind']}")
    after = [read_metrics(replica.url) for replica in behind]
    sought = [new[_SOUGHT] - old[_SOUGHT] for old, new in zip(before, after, strict=True)]
    found = [new[_FOUND] - old[_FOUND] for old, new in zip(before, after, strict=True)]
    shares = tuple(tokens / sum(sought) for tokens in sought)
    return Figures(sum(found) / sum(sought), result["median_ttft_ms"], result["p90_ttft_ms"], shares)


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds. Shares are sorted first: which replica gets more is chance."""
    shares = zip(*(sorted(figures.shares) for figures in rounds), strict=True)
    return Figures(
        median(figures.hit_rate for figures in rounds),
        median(figures.median_ttft_ms for figures in rounds),
        median(figures.p90_ttft_ms for figures in rounds),
        tuple(median(share) for share in shares),
    )


def table(figures: Mapping[str, Figures]) -> str:
    """The result as text, one line per router."""
    head = ("router", "prefix hit rate", "TTFT median, ms", "p90", "prompt tokens by replica")
    return aligned([head, *(_row(name, one) for name, one in figures.items())])


def main() -> int:
    """Print the table and one line of JSON. The exit code is 1 if no router has a higher hit rate than leastconn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=Load().num_requests, help="requests per round")
    parser.add_argument("--rate", type=float, default=Load().request_rate, help="requests/s")
    parser.add_argument("--groups", type=int, default=Load().num_groups, help="system prompts")
    parser.add_argument("--prefix-len", type=int, default=Load().prefix_len, help="tokens per system prompt, about")
    parser.add_argument("--kv-cache-memory", default="12MiB", help="size of each replica's KV cache; default: 12MiB")
    args = parser.parse_args()
    load = Load(args.requests, args.rate, args.groups, args.prefix_len)
    with replicas(2, ["--device", "cpu", "--kv-cache-memory", args.kv_cache_memory]) as behind:
        found, left_out = routers(behind)
        for name, reason in left_out.items():
            print(f"left out: {name}: {reason}", file=sys.stderr)
        rounds: dict[str, list[Figures]] = {name: [] for name in found}
        for number in range(args.rounds * len(found)):
            name = [*found][number % len(found)]
            rounds[name].append(measured(found[name], behind, load.requests(number)))
            print(*_row(name, rounds[name][-1]), sep="  ", file=sys.stderr, flush=True)
    figures = {name: medians(of_router) for name, of_router in rounds.items()}
    print(table(figures))
    print(json.dumps({name: dataclasses.asdict(one) for name, one in figures.items()}))
    with_affinity = [one.hit_rate for name, one in figures.items() if name != LEASTCONN]
    return 0 if LEASTCONN in figures and max(with_affinity, default=0.0) > figures[LEASTCONN].hit_rate else 1


def _row(name: str, one: Figures) -> tuple[str, ...]:
    shares = " : ".join(f"{share:.0%}" for share in one.shares)
    return name, f"{one.hit_rate:.1%}", f"{one.median_ttft_ms:.0f}", f"{one.p90_ttft_ms:.0f}", shares


def _kv_endpoints() -> tuple[str, str]:
    return f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"


def _prompt(request: TraceRequest, round_number: int) -> str:
    instructions = _words(request.prefix_len, random_stream(round_number, "instructions", request.prefix_group))
    return f"{instructions}. {_words(request.prompt_len, random_stream(round_number, 'question', request.request_id))}?"


def _words(count: int, rng: np.random.Generator) -> str:
    return " ".join(_WORDS[i] for i in rng.integers(0, len(_WORDS), count))


if __name__ == "__main__":
    raise SystemExit(main())
