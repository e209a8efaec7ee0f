"""Timings at start-up from which the iteration's predictor is first fitted (AdaptiveLLM, section 3.2)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from service.core.clock import Clock
from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.engine.ports import Executor
from service.scheduler.iteration_time import IterationTime, Workload

PROBE_SEQUENCE_ID = -2
"""Id of the first sequence of a plan; the next ones count down."""
ROUNDS = 4
SHARES = (128, 64, 32, 16, 8, 4, 2, 1)
DECODES = (4, 16, 40, 96)
PROMPTS_BESIDE_DECODES = ((0, 0), (1, 24), (1, 200), (8, 16))
"""Pairs of how many prompts, and tokens of each."""
MANY_PROMPTS = (64, 16)
"""As above, but without decodes: a burst."""
DECODED_CONTEXT = 320
"""Tokens."""
TIME_LIMIT_S = 3.0
"""A slow machine calibrates on the smaller iterations only: start-up in seconds matters more."""


def calibrate(
    executor: Executor,
    iteration_time: IterationTime,
    clock: Clock,
    *,
    num_blocks: int,
    block_size: int,
    max_tokens: int,
    max_model_len: int,
    max_num_seqs: int,
) -> None:
    """Let the executor compute prompts of several lengths, with and without a context, and of every size that it pads
    to, many short ones at once, and decodes with and without prompts beside them, and fit to the times.

    Before serving: it overwrites blocks. max_tokens: the token budget of an iteration. max_model_len: tokens that a
    sequence may have. max_num_seqs: sequences in an iteration.
    """
    probes = _Probes(num_blocks, block_size, min(max_model_len, num_blocks * block_size))
    plans = [
        *probes.prompts(min(max_tokens, probes.longest), iteration_time),
        *probes.beside_decodes(min(max_tokens, probes.longest), max_num_seqs),
    ]
    plans.sort(key=lambda plan: plan.num_scheduled_tokens)
    stop_s = clock.now_s() + TIME_LIMIT_S
    # Round by round, in another order each: how fast a GPU's clock runs depends on what it has computed just before.
    shuffled = random.Random(0)
    for round_number in range(ROUNDS):
        for plan in plans:
            if clock.now_s() > stop_s:
                break
            if round_number == 0:  # the first of a size may compile or allocate
                _seconds(executor, clock, plan)
            iteration_time.calibrate(Workload.of(plan), _seconds(executor, clock, plan))
        shuffled.shuffle(plans)
    iteration_time.fit()


class _Probes:
    """Plans to be timed. longest: tokens that a sequence may have and that fit the blocks."""

    def __init__(self, num_blocks: int, block_size: int, longest: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self.longest = longest

    def prompts(self, most: int, iteration_time: IterationTime) -> Iterator[IterationPlan]:
        """Plans of one prompt chunk of up to `most` tokens."""
        halvings = {max(2, most // share) for share in SHARES}
        for num_tokens in sorted(halvings.union(iteration_time.sizes(most))):
            yield IterationPlan((self._chunk(0, num_tokens),))
            start = min(most, self.longest - num_tokens)
            if num_tokens in halvings and start > 0:
                yield IterationPlan((self._chunk(start, num_tokens),))

    def beside_decodes(self, most: int, max_num_seqs: int) -> Iterator[IterationPlan]:
        """Plans of up to `most` tokens: decodes with short and with long contexts, some beside prompts."""
        yield IterationPlan(self._prompts(0, *MANY_PROMPTS, most, max_num_seqs))
        for num_decodes in sorted({min(count, max_num_seqs - 1, most) for count in DECODES} - {0}):
            for context in sorted({1, min(DECODED_CONTEXT, self.longest)}):
                decodes = [self._decode(i, context) for i in range(1, num_decodes + 1)]
                for num_prompts, num_tokens in PROMPTS_BESIDE_DECODES:
                    room = most - num_decodes, max_num_seqs - num_decodes
                    yield IterationPlan((*decodes, *self._prompts(num_decodes, num_prompts, num_tokens, *room)))

    def _chunk(self, start: int, num_tokens: int) -> ScheduledSequence:
        return _probe(0, start, num_tokens, tuple(range(-(-(start + num_tokens) // self._block_size))))

    def _prompts(
        self, num_before: int, count: int, num_tokens: int, most: int, max_num_seqs: int
    ) -> tuple[ScheduledSequence, ...]:
        """As many prompts as `most` tokens have room for, numbered from `num_before` + 1; the last may be shorter."""
        shares = list[ScheduledSequence]()
        num_tokens = min(num_tokens, self.longest)
        for number in range(1, min(count, max_num_seqs) + 1):
            length = min(num_tokens, most)
            if length < 2:
                break
            most -= length
            of_one = -(-length // self._block_size)
            blocks = tuple((number * of_one + i) % self._num_blocks for i in range(of_one))
            shares.append(_probe(num_before + number, 0, length, blocks))
        return tuple(shares)

    def _decode(self, number: int, context: int) -> ScheduledSequence:
        """The blocks of different ones are different as far as there are enough: a cache would hold what is shared."""
        of_one = -(-context // self._block_size)
        blocks = tuple((number * of_one + i) % self._num_blocks for i in range(of_one))
        return _probe(number, context - 1, 1, blocks)


def _probe(number: int, start: int, num_tokens: int, blocks: tuple[int, ...]) -> ScheduledSequence:
    sequence_id = PROBE_SEQUENCE_ID - number
    draws = (Sample(sequence_id, 0),)  # who draws, waits for the result
    return ScheduledSequence(sequence_id, (0,) * num_tokens, start, 0, blocks, SamplingParams(max_tokens=1), draws)


def _seconds(executor: Executor, clock: Clock, plan: IterationPlan) -> float:
    """Of one iteration. The executor knows its decodes already, as in traffic: a new sequence costs the host time."""
    decodes = tuple(item for item in plan.scheduled if len(item.token_ids) == 1)
    if decodes:
        executor.launch(IterationPlan(decodes)).wait()
        known = (item._replace(table_start=len(item.block_ids), block_ids=()) for item in decodes)
        prompts = (item for item in plan.scheduled if len(item.token_ids) > 1)
        plan = IterationPlan((*known, *prompts))
    started_s = clock.now_s()
    result = executor.launch(plan).wait()
    seconds = clock.now_s() - started_s if result.compute_s is None else result.compute_s
    released = tuple(item.sequence_id for item in plan.scheduled)
    executor.launch(IterationPlan((), released=released)).wait()
    return max(seconds, 1e-9)
