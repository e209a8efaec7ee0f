"""The most chunks per second that the client can receive, against the stub server, which writes pre-made chunks.

`python -m loadtest.throughput_benchmark`. The stub has its own process, so with one client process and two cores each
side has a core. `--chunks-per-write` takes load off the stub, to find the client's own limit.
"""

import argparse
import json
import resource
from dataclasses import asdict, dataclass

from loadtest.metrics import RunLabels, summarize
from loadtest.prompts import BodyOptions
from loadtest.runner import LoadPlan, run_load
from loadtest.stub_server import VOCAB_SIZE, running_stub
from loadtest.workload import draw, fixed


@dataclass(frozen=True, slots=True)
class ClientRate:
    """Chunks with tokens per second of elapsed time (first start to last end), and per CPU second of the client without
    its start-up. The second figure is valid on a busy machine too.
    """

    chunks_per_s: float
    chunks_per_cpu_s: float


def client_rate(
    base_url: str, num_streams: int, num_tokens: int, num_processes: int, return_token_ids: bool
) -> ClientRate:
    """The client's rate over all streams, sent at once."""
    options = BodyOptions("stub", vocab_size=VOCAB_SIZE, return_token_ids=return_token_ids)

    def run(tokens: int) -> tuple[int, float, float]:
        """Chunks, seconds, CPU seconds of the client processes."""
        requests = tuple(draw(fixed(8, tokens), num_streams, seed=0))
        before_s = _ended_children_cpu_s()
        outcome = run_load(LoadPlan(base_url, requests, options, num_processes=num_processes))
        result = summarize(outcome, RunLabels("openai", "stub", "stub"))
        assert not result["failed"], result["errors_by_kind"]
        chunks = sum(len(record.chunk_times) for record in outcome.records)
        return chunks, outcome.duration_s, _ended_children_cpu_s() - before_s

    start_chunks, _, start_cpu_s = run(1)
    chunks, seconds, cpu_s = run(num_tokens)
    return ClientRate(chunks / seconds, (chunks - start_chunks) / (cpu_s - start_cpu_s))


def _ended_children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print one line of JSON per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--chunks-per-write", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    for per_write in args.chunks_per_write:
        for with_ids in (False, True):
            with running_stub("--chunks-per-write", str(per_write)) as base_url:
                rate = client_rate(base_url, args.streams, args.tokens, args.processes, with_ids)
            setting = {"chunks_per_write": per_write, "token_ids": with_ids, "processes": args.processes}
            rates = {name: round(value) for name, value in asdict(rate).items()}
            print(json.dumps({**setting, "streams": args.streams, **rates}), flush=True)


if __name__ == "__main__":
    main()
