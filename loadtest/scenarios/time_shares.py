"""Where the latency of requests over HTTP goes: device, staging, scheduling, time between iterations, HTTP.

Measured with equal requests at once, so that every request is in nearly every iteration: the sum of a phase over the
iterations is then that phase's part of each request's latency. If prompts start one after another, the first requests
end before the last. Each phase is then scaled by (a request's time in the engine) / (time that the engine worked).
Phases are of the engine's thread and do not overlap, even if iterations do. On a GPU, the wait for the result is the
part of the device's time that the host does not hide. On a CPU, the executor computes during the launch; its staging is
measured separately and subtracted.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from loadtest.prompts import BodyOptions
from loadtest.runner import LoadPlan, run_load
from loadtest.server_facts import fetch_server_facts
from loadtest.server_metrics import read_metrics
from loadtest.workload import draw, fixed

_BLOCK_SIZE = 16
_STAGING_ROUNDS = 20
_WARM_UP_LEN = 8
_DETOKENIZED = 2000


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Seconds of one request's latency. They add up to `latency_s`, and none is negative.

    deciding: scheduling and applying results. between: the engine's thread waits for the interpreter, passes events on
    or is idle. outside: HTTP, tokenizing, detokenizing, framing and the client, before and after the engine.
    """

    latency_s: float
    device_s: float
    staging_s: float
    deciding_s: float
    between_s: float
    outside_s: float


def measure_shares(
    base_url: str, num_requests: int, prompt_len: int, output_len: int, vocab_size: int, prompt_seed: int
) -> TimeShares:
    """Send the requests at once, after a short warm-up request. Raises RuntimeError if one fails.

    prompt_seed: use a new one for each call, or the prompts are in the server's prefix cache; 0 is the warm-up's.
    """
    options = BodyOptions(fetch_server_facts(base_url, {}).model_id, vocab_size=vocab_size)
    short = fixed(prompt_len, min(output_len, _WARM_UP_LEN))
    run_load(LoadPlan(base_url, tuple(draw(short, 1, seed=0)), options, warmup_requests=0))
    before = read_metrics(base_url)
    workload = fixed(prompt_len, output_len)
    requests = tuple(draw(workload, num_requests, seed=0, prompt_seed=prompt_seed))
    outcome = run_load(LoadPlan(base_url, requests, options, warmup_requests=0))
    after = read_metrics(base_url)
    failed = [record.error for record in outcome.records if record.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {num_requests} requests failed: {failed[0]}")
    spent = {name: value - before.get(name, 0.0) for name, value in after.items()}
    staging_s = None if _waits_for_the_device(spent) else staging_seconds(num_requests, prompt_len) * output_len
    first_s = min(record.scheduled_s for record in outcome.records)
    together_s = max(record.scheduled_s + record.latency_s for record in outcome.records) - first_s
    return time_shares(fmean(record.latency_s for record in outcome.records), together_s, spent, staging_s)


def time_shares(latency_s: float, together_s: float, spent: Mapping[str, float], staging_s: float | None) -> TimeShares:
    """Computed from how much the server's metrics grew. latency_s: mean over the requests. together_s: from the first
    request's start to the last one's end. staging_s: to be subtracted from launches; None if those are only staging."""
    phases = {phase: spent[_phase(phase)] for phase in ("schedule", "launch", "wait", "apply")}
    in_engine_s = min(latency_s, spent["headrace_request_seconds_sum"] / spent["headrace_request_seconds_count"])
    outside_s = latency_s - in_engine_s
    in_phases_s = sum(phases.values())
    at_work_s = max(together_s - outside_s, in_phases_s)
    share = in_engine_s / at_work_s
    phases = {phase: share * seconds for phase, seconds in phases.items()}
    staging = phases["launch"] if staging_s is None else min(share * staging_s, phases["launch"])
    return TimeShares(
        latency_s=latency_s,
        device_s=phases["wait"] + phases["launch"] - staging,
        staging_s=staging,
        deciding_s=phases["schedule"] + phases["apply"],
        between_s=share * (at_work_s - in_phases_s),
        outside_s=outside_s,
    )


def staging_seconds(batch: int, context_len: int) -> float:
    """Seconds in which the runner turns a plan with `batch` decodes into arrays and tensors, on this CPU."""
    import torch

    from service.core.iteration import IterationPlan
    from service.core.sampling_params import SamplingParams
    from service.core.scheduled_sequence import Sample, ScheduledSequence
    from service.runner.device_copies import to_device
    from service.runner.selective_batching import flatten, plan_columns
    from service.runner.sequence_rows import SequenceRows

    num_blocks = context_len // _BLOCK_SIZE + 1
    rows = SequenceRows(batch, num_blocks)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    blocks = tuple(range(num_blocks))
    decodes = (ScheduledSequence(i, i + 1, (5,), context_len, 0, blocks, params, (Sample(i, i),)) for i in range(batch))
    plan = IterationPlan(tuple(decodes))
    seconds = []
    for _ in range(_STAGING_ROUNDS):
        began = time.perf_counter()
        to_device(flatten(plan_columns(plan, rows), rows, _BLOCK_SIZE).arrays(), torch.device("cpu"))
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def detokenizing_seconds(vocab_size: int) -> float:
    """Seconds per token of a stream, in the event loop's thread, while the engine's thread works too."""
    from service.text.detokenizer import make_detokenizer
    from service.text.dummy_tokenizer import dummy_tokenizer

    detokenizer = make_detokenizer(dummy_tokenizer(vocab_size))
    token_ids = np.random.default_rng(0).integers(3, vocab_size, _DETOKENIZED).tolist()
    began = time.perf_counter()
    for token_id in token_ids:
        detokenizer.push([token_id])
    return (time.perf_counter() - began) / _DETOKENIZED


def _waits_for_the_device(spent: Mapping[str, float]) -> bool:
    return spent[_phase("wait")] > 0.1 * spent[_phase("launch")]


def _phase(name: str) -> str:
    return "headrace_iteration_seconds_sum{phase=" + name + "}"
