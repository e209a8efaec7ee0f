"""Time of decode steps in the model runner, without engine and HTTP: `python -m loadtest.bench.decode_steps FOLDER`.

FOLDER holds a config.json; weights are dummies. For each batch size: prompts of `--prompt-len` tokens, then
`--num-steps` greedy decode steps, each launched when the one before has returned its ids. Prints ms per step; the
host's part of it (the launch); and the device's part, from replays of the CUDA graph of the longest context. With
`--profile N`, also the N kernels with the most time in the last step. With `--prompt-tokens M ...` every step also
computes a prompt chunk of M tokens (0: none). With `--ranks R`, R processes with a GPU each run the model in tensor
parallel, and the first one prints. The last line is JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from loadtest.bench.kernel_profile import kernel_times, print_kernel_times, trace_events
from loadtest.bench.ranks import run_ranks
from service.config import CacheConfig, ModelSource, ParallelConfig
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.distributed.process_groups import join_ranks, open_store
from service.distributed.rank_device import rank_device
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.runner.load import LoadedModel, load_executor
from service.runner.model_runner import ModelRunner

BLOCK_SIZE = 16
PREFILL_TOKENS = 2048
_PROFILED_STEPS = 5


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the steps, in milliseconds. launch_ms: on the host. device_ms: from the first kernel of a launch to
    the last one, at the longest context; 0 on a CPU."""

    batch: int
    step_ms: float
    mean_step_ms: float
    launch_ms: float
    device_ms: float


class DecodePlayer:
    """`batch` sequences of the same length, each with its own blocks. beside: prompt tokens that every step also
    computes."""

    def __init__(
        self,
        runner: ModelRunner,
        batch: int,
        prompt_len: int,
        num_steps: int,
        params: SamplingParams,
        beside: int = 0,
    ) -> None:
        self._runner = runner
        self._params = params
        self._length = prompt_len
        self._beside = beside
        self._blocks = -(-(prompt_len + num_steps + 64) // BLOCK_SIZE)
        self._draws = [(Sample(i, i),) for i in range(batch + 1)]
        self._token_ids: list[int] = [0] * batch
        per_plan = max(1, PREFILL_TOKENS // prompt_len)
        for start in range(0, batch, per_plan):
            ids = range(start, min(start + per_plan, batch))
            shares = tuple(self._prompt(i, prompt_len) for i in ids)
            self._token_ids[start : ids.stop] = runner.launch(IterationPlan(shares)).wait().token_ids

    def plan(self) -> IterationPlan:
        """The plan of the next step."""
        position = self._length
        shares = [
            ScheduledSequence(i, i + 1, (token_id,), position, 0, (), self._params, draw)
            for i, (token_id, draw) in enumerate(zip(self._token_ids, self._draws, strict=False))
        ]
        if self._beside:
            shares.append(self._prompt(len(self._token_ids), self._beside))
        return IterationPlan(tuple(shares))

    def step(self) -> tuple[float, float]:
        """Run a step. Returns the seconds of the whole step and of its launch."""
        plan = self.plan()
        started_s = time.perf_counter()
        pending = self._runner.launch(plan)
        launched_s = time.perf_counter()
        self._token_ids = list(pending.wait().token_ids)[: len(self._token_ids)]
        self._length += 1
        return time.perf_counter() - started_s, launched_s - started_s

    def end(self) -> None:
        rows = len(self._token_ids) + (1 if self._beside else 0)
        self._runner.launch(IterationPlan((), released=tuple(range(1, 1 + rows)))).wait()

    def _prompt(self, i: int, length: int) -> ScheduledSequence:
        prompt = tuple((7 * i + 11 * k) % 1000 for k in range(length))
        blocks = tuple(range(i * self._blocks, i * self._blocks + max(self._blocks, -(-length // BLOCK_SIZE))))
        return ScheduledSequence(i, i + 1, prompt, 0, 0, blocks, self._params, self._draws[i])


def measure(
    runner: ModelRunner, batch: int, prompt_len: int, num_steps: int, temperature: float, beside: int = 0
) -> Result:
    params = SamplingParams(max_tokens=1, temperature=temperature, top_p=0.9 if temperature else 1.0)
    player = DecodePlayer(runner, batch, prompt_len, num_steps, params, beside)
    steps = [player.step() for _ in range(num_steps)]
    device_ms = _device_ms(player, runner) if torch.cuda.is_available() else 0.0
    player.end()
    seconds, launches = zip(*steps, strict=True)
    median = statistics.median(seconds)
    return Result(batch, median * 1e3, statistics.mean(seconds) * 1e3, statistics.median(launches) * 1e3, device_ms)


def _device_ms(player: DecodePlayer, runner: ModelRunner) -> float:
    """Repeats the last step, launched faster than the device runs it. Milliseconds per step."""
    plan = player.plan()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            pending = runner.launch(plan)
        end.record()
        pending.wait()
        times.append(float(start.elapsed_time(end)) / 5)
    return statistics.median(times)


def print_profile(runner: ModelRunner, batch: int, prompt_len: int, num_rows: int, beside: int = 0) -> None:
    """Print the time by kernel and grid."""
    params = SamplingParams(max_tokens=1, temperature=0.0)
    player = DecodePlayer(runner, batch, prompt_len, 64, params, beside)
    for _ in range(3):
        player.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_PROFILED_STEPS):
            player.step()
    player.end()
    print(f"batch {batch}: ", end="")
    print_kernel_times(kernel_times(trace_events(profile)), _PROFILED_STEPS, num_rows)


def load(
    folder: Path,
    max_num_seqs: int,
    max_model_len: int,
    enforce_eager: bool,
    *,
    deterministic: bool = False,
    quantization: Literal["fp8"] | None = None,
    kv_cache_dtype: Literal["auto", "fp8"] = "auto",
    parallel: TensorParallel = ALONE,
) -> LoadedModel:
    device: Literal["cuda", "cpu"] = "cuda" if torch.cuda.is_available() else "cpu"
    source = ModelSource(str(folder), None, None, None, "dummy", "auto", device, max_model_len, 0)
    source = replace(source, deterministic=deterministic, quantization=quantization)
    cache = CacheConfig(BLOCK_SIZE, 0.9, None, dtype=kv_cache_dtype)
    sizes = max_num_seqs, PREFILL_TOKENS
    loaded = load_executor(source, folder, cache, *sizes, enforce_eager=enforce_eager, parallel=parallel)
    while loaded.idle_work.do_some():
        pass
    return loaded


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.decode_steps", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[0])
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--num-steps", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.ranks == 1:
        run(options)
        return
    if run_ranks(options.ranks, run_rank, options):
        sys.exit("a rank has failed")


def run_rank(rank: int, meeting_point: str, options: argparse.Namespace) -> None:
    device = rank_device("auto", rank, options.ranks)
    store = open_store(None, meeting_point, options.ranks)
    place = join_ranks(rank, ParallelConfig(tensor_size=options.ranks), store, device)
    with redirect_stdout(io.StringIO()) if rank else nullcontext():
        run(options, place.parallel)
    place.parallel.least(0)  # a barrier: every rank has done what the others wait for
    sys.stdout.flush()
    os._exit(0)  # NCCL's threads may still run; destroying the communicators under them sometimes crashes


def run(options: argparse.Namespace, parallel: TensorParallel = ALONE) -> None:
    started_s = time.perf_counter()
    max_model_len = options.prompt_len + options.num_steps + 128
    loaded = load(
        options.folder,
        max(options.batch) + (1 if any(options.prompt_tokens) else 0),
        max(max_model_len, max(options.prompt_tokens) + 1),
        options.enforce_eager,
        deterministic=options.deterministic,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        parallel=parallel,
    )
    print(f"loaded in {time.perf_counter() - started_s:.1f} s; {loaded.memory}")
    results = []
    print(f"{'batch':>6} {'step ms':>9} {'mean':>9} {'launch':>9} {'device':>9}")
    for batch, beside in product(options.batch, options.prompt_tokens):
        lengths = options.prompt_len, options.num_steps
        result = measure(loaded.runner, batch, *lengths, options.temperature, beside)
        times = (result.step_ms, result.mean_step_ms, result.launch_ms, result.device_ms)
        print(f"{batch:6} " + " ".join(f"{ms:9.3f}" for ms in times) + (f" beside {beside}" if beside else ""))
        results.append({**asdict(result), "prompt_tokens": beside})
        if options.profile:
            context = options.prompt_len + options.num_steps // 2
            print_profile(loaded.runner, batch, context, options.profile, beside)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
