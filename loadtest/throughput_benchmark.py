"""How many chunks a second the client takes: it against the stub server, which writes pre-made chunks.

`python -m loadtest.throughput_benchmark`. The stub has a process of its own, so on two cores with one client
process each side has a core. `--chunks-per-write` relieves the stub, to see the client's own ceiling.
"""

import argparse
import json

from loadtest.metrics import RunLabels, summarize
from loadtest.prompts import BodyOptions
from loadtest.runner import LoadPlan, run_load
from loadtest.stub_server import VOCAB_SIZE, running_stub
from loadtest.workload import draw, fixed


def chunks_per_second(
    base_url: str, num_streams: int, num_tokens: int, num_processes: int, return_token_ids: bool
) -> float:
    """Chunks with tokens, over all streams at once, by the time from the first start to the last end."""
    requests = tuple(draw(fixed(8, num_tokens), num_streams, seed=0))
    options = BodyOptions("stub", vocab_size=VOCAB_SIZE, return_token_ids=return_token_ids)
    outcome = run_load(LoadPlan(base_url, requests, options, num_processes=num_processes))
    result = summarize(outcome, RunLabels("openai", "stub", "stub"))
    assert not result["failed"], result["errors_by_kind"]
    return sum(len(record.chunk_times) for record in outcome.records) / outcome.duration_s


def main() -> None:
    """Prints one line of JSON for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--chunks-per-write", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    for per_write in args.chunks_per_write:
        for with_ids in (False, True):
            with running_stub("--chunks-per-write", str(per_write)) as base_url:
                rate = chunks_per_second(base_url, args.streams, args.tokens, args.processes, with_ids)
            setting = {"chunks_per_write": per_write, "token_ids": with_ids, "processes": args.processes}
            print(json.dumps({**setting, "streams": args.streams, "chunks_per_s": round(rate)}), flush=True)


if __name__ == "__main__":
    main()
