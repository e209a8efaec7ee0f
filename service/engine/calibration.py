"""Timings at start-up from which the iteration's predictor is first fitted (AdaptiveLLM, section 3.1.1)."""

from __future__ import annotations

from service.core.clock import Clock
from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.engine.ports import Executor
from service.scheduler.iteration_time import IterationTime, Workload

PROBE_SEQUENCE_ID = -2
ROUNDS = 3
SHARES = (128, 64, 32, 16, 8, 4, 2, 1)
TIME_LIMIT_S = 3.0
"""A slow machine calibrates on the shorter prompts only: start-up in seconds matters more."""


def calibrate(
    executor: Executor,
    iteration_time: IterationTime,
    clock: Clock,
    *,
    num_blocks: int,
    block_size: int,
    max_tokens: int,
    max_model_len: int,
) -> None:
    """Let the executor compute prompts of several lengths, with and without a context, and of every size that it pads
    to, and fit to the times.

    Before serving: it overwrites blocks. max_tokens: the token budget of an iteration. max_model_len: tokens that a
    sequence may have.
    """
    most = min(max_model_len, num_blocks * block_size)
    longest = min(max_tokens, most)
    halvings = {max(2, longest // share) for share in SHARES}
    stop_s = clock.now_s() + TIME_LIMIT_S
    for num_tokens in sorted(halvings.union(iteration_time.sizes(longest))):
        if clock.now_s() > stop_s:
            break
        starts = (0, min(longest, most - num_tokens)) if num_tokens in halvings else (0,)
        for start in starts:
            for round_number in range(ROUNDS):
                seconds = _seconds(executor, clock, start, num_tokens, block_size)
                if round_number > 0:  # the first of a size may compile or allocate
                    iteration_time.calibrate(Workload.of_chunk(start, num_tokens), seconds)
    iteration_time.fit()


def _seconds(executor: Executor, clock: Clock, start: int, num_tokens: int, block_size: int) -> float:
    block_ids = tuple(range(-(-(start + num_tokens) // block_size)))
    params = SamplingParams(max_tokens=1)
    draws = (Sample(PROBE_SEQUENCE_ID, 0),)  # who draws, waits for the result
    scheduled = ScheduledSequence(PROBE_SEQUENCE_ID, (0,) * num_tokens, start, 0, block_ids, params, draws)
    started_s = clock.now_s()
    executor.launch(IterationPlan((scheduled,))).wait()
    seconds = clock.now_s() - started_s
    executor.launch(IterationPlan((), released=(PROBE_SEQUENCE_ID,))).wait()
    return max(seconds, 1e-9)
