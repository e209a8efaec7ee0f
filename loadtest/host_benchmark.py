"""Cost of the host: tokens/s and CPU microseconds per streamed token, over real HTTP, by number of streams.

    python -m loadtest.host_benchmark --streams 64 256 --step-ms 10 [--idle-connections 5000] [flags of headrace serve]
    python -m loadtest.host_benchmark --streams 1000 --workload orca --step-ms 3 --overlap

The server is `host_server.py`, so no device is needed; the client is the load generator, in its own process.
CPU time is the kernel's count for the server's threads while the run's requests are in flight, warm-up excluded; the
engine's thread is counted apart from the others. It depends less on other work on the machine than tokens/s do.
"""

import argparse
import contextlib
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.host_server import ENGINE_THREAD
from loadtest.metrics import RunLabels, summarize
from loadtest.process_cpu import CpuUse
from loadtest.prompts import BodyOptions
from loadtest.runner import LoadPlan, run_load
from loadtest.server_facts import fetch_server_facts
from loadtest.server_process import free_port, running_server
from loadtest.trace import with_arrivals
from loadtest.workload import draw, named

VOCAB_SIZE = 32_000
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True)
class HostCost:
    """requests_per_s, tokens_per_s: whole run. engine_us, rest_us: CPU microseconds per token. tpot_ms: median."""

    streams: int
    requests_per_s: float
    tokens_per_s: float
    engine_us: float
    rest_us: float
    tpot_ms: float

    @property
    def total_us(self) -> float:
        return self.engine_us + self.rest_us


def measure(url: str, pid: int, num_streams: int, workload: str, prompt_seed: int) -> HostCost:
    """One run: `num_streams` requests at once, after a warm-up that is not counted."""
    requests = draw(named(workload), num_streams, seed=0, prompt_seed=prompt_seed)
    options = BodyOptions(fetch_server_facts(url, {}).model_id, vocab_size=VOCAB_SIZE - 1)
    use = CpuUse(pid)
    outcome = run_load(LoadPlan(url, tuple(with_arrivals(requests, [0.0] * num_streams)), options), around=use)
    labels = RunLabels("openai", "headrace", options.model, workload, workload=workload, num_processes=1)
    result = summarize(outcome, labels)
    num_tokens = result["total_output_tokens"]
    engine_s = use.by_thread[ENGINE_THREAD]
    return HostCost(
        streams=num_streams,
        requests_per_s=result["request_throughput"],
        tokens_per_s=result["output_throughput"],
        engine_us=engine_s / num_tokens * 1e6,
        rest_us=(use.seconds - engine_s) / num_tokens * 1e6,
        tpot_ms=result["median_tpot_ms"],
    )


@contextlib.contextmanager
def idle_connections(url: str, count: int) -> Iterator[None]:
    """Holds `count` connections open that are idle after one answer."""
    address = urlsplit(url)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((str(address.hostname), address.port)))
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(4096)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--workload", default="fixed-32x512", help="workload; `orca` is a burst of short requests")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--launch-ms", type=float, default=0.0, help="CPU milliseconds per launch; default: 0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-connections", type=int, default=0)
    args, flags = parser.parse_known_args(arguments)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_CONFIG))
        command = [sys.executable, "-m", "loadtest.host_server", "--step-ms", str(args.step_ms)]
        command += ["--launch-ms", str(args.launch_ms), "--"]
        command += [folder, "--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--port", str(port)]
        command += ["--max-num-seqs", "512", "--max-num-batched-tokens", "8192", "--kv-cache-memory", "256MiB"]
        serving = running_server([*command, *flags], f"{url}/ready")
        with serving as server, idle_connections(url, args.idle_connections):
            for streams in args.streams:
                runs = [measure(url, server.pid, streams, args.workload, seed) for seed in range(args.rounds)]
                best = min(runs, key=lambda cost: cost.total_us)
                median_us = statistics.median(cost.total_us for cost in runs)
                print(
                    f"{streams:5} streams: {best.total_us:6.2f} us a token at best (median {median_us:.2f}), engine"
                    f" {best.engine_us:.2f}, rest {best.rest_us:.2f}; {best.requests_per_s:.1f} requests/s,"
                    f" {best.tokens_per_s:.0f} tokens/s, TPOT {best.tpot_ms:.2f} ms at a step of {args.step_ms:g}"
                )
                print(json.dumps({**asdict(best), "total_us": best.total_us, "median_us": median_us}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
