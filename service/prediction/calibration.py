"""Timings at start-up to which the predictor of iteration times is first fitted (AdaptiveLLM, section 3.2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from service.core.clock import Clock
from service.core.iteration import IterationPlan, IterationResult
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.prediction.execution_time import ExecutionTime
from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload

PROBE_SEQUENCE_ID = -2
"""Id of a plan's first probe sequence; further ones count down."""
ROUNDS = 4
SHARES = (128, 64, 32, 16, 8, 4, 2, 1)
DECODES = (4, 16, 40, 96)
PROMPTS_BESIDE_DECODES = ((0, 0), (1, 24), (1, 200), (8, 16))
"""Pairs: number of prompts, tokens per prompt."""
MANY_PROMPTS = (64, 16)
"""The same, for a burst of prompts without decodes."""
PROMPT_OF_SEVERAL = 256
"""Tokens per prompt where several prompts fill an iteration; it then has fewer attention pairs than with one prompt."""
DECODED_CONTEXT = 320
"""Context length of the decodes, in tokens."""
LARGE = 256
"""From so many tokens on, an iteration's time depends on how much was computed just before (device_heat.py)."""
NUM_COOLING = 32
"""Sequences that decode while the device cools."""
COOLING_S = 0.03
TIME_LIMIT_S = 4.0
"""Limit for all timings, smaller iterations first: on a slow machine a quick start-up matters more."""


Execute = Callable[[IterationPlan], IterationResult]
"""Executes a plan and waits for its result."""


def calibrate(
    execute: Execute,
    iteration_time: IterationTime,
    clock: Clock,
    *,
    num_blocks: int,
    block_size: int,
    max_tokens: int,
    max_model_len: int,
    max_num_seqs: int,
    vocab_size: int,
    num_layer_groups: int = 1,
) -> None:
    """Time iterations on an executor, and fit the predictor to them: prompts of several lengths, with and without a
    context; one prompt and several, of every size that the executor pads to; many short prompts; decodes with and
    without prompts beside them.

    Before serving, since it overwrites blocks. max_tokens: token budget of an iteration. max_model_len: the most tokens
    of a sequence. max_num_seqs: the most sequences in an iteration. vocab_size: ids are random below this, since with
    equal ids a GPU takes less power and computes large iterations up to 10 % faster (Llama-8B on one H200).
    num_layer_groups: blocks per block_size tokens.
    """
    longest = min(max_model_len, num_blocks // num_layer_groups * block_size)
    probes = _Probes(num_blocks, num_layer_groups, block_size, longest, vocab_size)
    plans = [
        *probes.prompts(min(max_tokens, probes.longest), iteration_time, max_num_seqs),
        *probes.beside_decodes(min(max_tokens, probes.longest), max_num_seqs),
    ]
    plans.sort(key=lambda plan: plan.num_scheduled_tokens)
    timing = _Timing(execute, iteration_time, clock, probes.decodes(min(NUM_COOLING, max_num_seqs), 1))
    stop_s = clock.now_s() + TIME_LIMIT_S
    # A new order in each round, and cooling in every other one, because a GPU's clock depends on what ran just before.
    shuffled = random.Random(0)
    for round_number in range(ROUNDS):
        is_cooled = round_number % 2 == 0
        if is_cooled:
            plans.sort(key=_is_large)
        for plan in plans:
            if clock.now_s() > stop_s:
                break
            if is_cooled and _is_large(plan):
                timing.cool()
            timed = timing.of(plan)
            if round_number == 0 and not timed.is_replayed:  # the first of its size may have compiled or allocated
                timed = timing.of(plan)
            iteration_time.calibrate(timed.workload, timed.seconds)
        shuffled.shuffle(plans)
    iteration_time.fit()


def _is_large(plan: IterationPlan) -> bool:
    return plan.num_scheduled_tokens >= LARGE


class _Probes:
    """Builds the plans to be timed. longest: the most tokens of a sequence, by model and by blocks."""

    def __init__(self, num_blocks: int, num_layer_groups: int, block_size: int, longest: int, vocab_size: int) -> None:
        self._num_blocks = num_blocks
        self._num_layer_groups = num_layer_groups
        self._block_size = block_size
        self._vocab = range(vocab_size)
        self._random = random.Random(0)
        self.longest = longest

    def prompts(self, most: int, iteration_time: IterationTime, max_num_seqs: int) -> Iterator[IterationPlan]:
        """Plans of one prompt chunk of up to `most` tokens, and plans of several prompts with as many tokens in all."""
        halvings = {max(2, most // share) for share in SHARES}
        for num_tokens in sorted(halvings.union(iteration_time.sizes(most))):
            yield IterationPlan((self._probe(0, 0, num_tokens),))
            if num_tokens >= 2 * PROMPT_OF_SEVERAL and max_num_seqs > 1:
                yield IterationPlan(self._prompts(0, max_num_seqs, PROMPT_OF_SEVERAL, num_tokens, max_num_seqs))
            start = min(most, self.longest - num_tokens)
            if num_tokens in halvings and start > 0:
                yield IterationPlan((self._probe(0, start, num_tokens),))

    def beside_decodes(self, most: int, max_num_seqs: int) -> Iterator[IterationPlan]:
        """Plans of up to `most` tokens: decodes with short and with long contexts, some of them beside prompts."""
        yield IterationPlan(self._prompts(0, *MANY_PROMPTS, most, max_num_seqs))
        for num_decodes in sorted({min(count, max_num_seqs - 1, most) for count in DECODES} - {0}):
            for context in sorted({1, min(DECODED_CONTEXT, self.longest)}):
                decodes = self.decodes(num_decodes, context)
                for num_prompts, num_tokens in PROMPTS_BESIDE_DECODES:
                    room = most - num_decodes, max_num_seqs - num_decodes
                    yield IterationPlan((*decodes, *self._prompts(num_decodes, num_prompts, num_tokens, *room)))

    def decodes(self, count: int, context: int) -> tuple[ScheduledSequence, ...]:
        """`count` decodes with `context` tokens each."""
        return tuple(self._probe(number, context - 1, 1) for number in range(1, count + 1))

    def _prompts(
        self, num_before: int, count: int, num_tokens: int, most: int, max_num_seqs: int
    ) -> tuple[ScheduledSequence, ...]:
        """As many prompts as fit into `most` tokens, numbered from `num_before` + 1; the last one may be shorter."""
        shares = list[ScheduledSequence]()
        num_tokens = min(num_tokens, self.longest)
        for number in range(1, min(count, max_num_seqs) + 1):
            length = min(num_tokens, most)
            if length < 2:
                break
            most -= length
            shares.append(self._probe(num_before + number, 0, length))
        return tuple(shares)

    def _probe(self, number: int, start: int, num_tokens: int) -> ScheduledSequence:
        """Sequence `number` of a plan, which computes `num_tokens` tokens from position `start` on.

        Sequences have different blocks if there are enough, because shared ones would be read from the GPU's cache.
        """
        of_one = -(-(start + num_tokens) // self._block_size) * self._num_layer_groups
        blocks = tuple((number * of_one + i) % self._num_blocks for i in range(of_one))
        sequence_id = PROBE_SEQUENCE_ID - number
        token_ids = tuple(self._random.choices(self._vocab, k=num_tokens))
        draws = (Sample(sequence_id, 0),)  # a draw makes the executor wait for the device
        params = SamplingParams(max_tokens=1)
        return ScheduledSequence(sequence_id, 1 + number, token_ids, start, 0, blocks, params, draws)


class _Timed(NamedTuple):
    workload: Workload
    seconds: float
    is_replayed: bool


class _Timing:
    """Times plans one after another, and tells the predictor how they heat the device. cooling: decodes."""

    def __init__(
        self,
        execute: Execute,
        iteration_time: IterationTime,
        clock: Clock,
        cooling: tuple[ScheduledSequence, ...],
    ) -> None:
        self._execute = execute
        self._heat = iteration_time.heat
        self._clock = clock
        self._cooling = cooling
        self._ended_s = clock.now_s()
        self._has_own_clock = False

    def of(self, plan: IterationPlan) -> _Timed:
        """Time a plan. Its decodes are made known to the executor first, as in traffic; new ones cost host time."""
        decodes = tuple(item for item in plan.scheduled if len(item.token_ids) == 1)
        if decodes:
            self._compute(IterationPlan(decodes))
            prompts = (item for item in plan.scheduled if len(item.token_ids) > 1)
            plan = IterationPlan((*_known(decodes), *prompts))
        timed = self._compute(plan)
        self._release(plan.scheduled)
        return timed

    def cool(self) -> None:
        """Decode for a while, as happens between prompts. Only if the device has a clock, without which heat is 0."""
        if not self._has_own_clock:
            return
        until_s = self._clock.now_s() + COOLING_S
        self._compute(IterationPlan(self._cooling))
        decode = IterationPlan(_known(self._cooling))
        while self._clock.now_s() < until_s:
            self._compute(decode)
        self._release(self._cooling)

    def _compute(self, plan: IterationPlan) -> _Timed:
        started_s = self._clock.now_s()
        result = self._execute(plan)
        host_s, idle_s = self._clock.now_s() - started_s, started_s - self._ended_s
        took = ExecutionTime(host_s, is_exact=True, compute_s=result.compute_s, idle_s=idle_s)
        self._heat.rested(took.rest_s)
        self._ended_s = started_s + host_s
        workload = Workload.of(plan, self._heat.level)
        self._has_own_clock = result.compute_s is not None
        if self._has_own_clock:
            self._heat.executed(took.seconds, is_decode=not workload.num_prompts)
        return _Timed(workload, took.seconds, result.is_replayed)

    def _release(self, items: Iterable[ScheduledSequence]) -> None:
        self._execute(IterationPlan((), released=tuple(item.row for item in items)))


def _known(decodes: tuple[ScheduledSequence, ...]) -> tuple[ScheduledSequence, ...]:
    return tuple(item._replace(table_start=len(item.block_ids), block_ids=()) for item in decodes)
