"""FineInfer's SimpleReqManager (end-to-end report, section 3.3): continuous batching with one padded, contiguous tensor
of keys and values, as transformers' models take it.

Modelled, on our engine and kernels:
- Admission (`get_fitting_batches`). The running batch is a rectangle with a row per sequence. All rows grow by one
  column per iteration, so a request joins at the batch's present width, and from there every row may still generate up
  to its limit: (width now + most tokens still to generate) x rows must fit in the KV memory. It does not know the real
  lengths of answers. When the longest row leaves, the padding common to the others is dropped.
- Prefill: an iteration of its own (`generation_step` runs one stage or the other). Prompts are padded to the longest,
  and the model computes the padding.
- Decode: attention reads the padding of shorter rows; a mask hides it, but it is not skipped.
Not modelled, in its favour: concatenating tensors costs nothing, neither for each iteration's new column nor when
requests join and leave; and the old and the new tensor need no memory at the same time (`fineinfer_fig5` has a variant
whose memory is smaller for that reason).
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, KnownLimit
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.plan_reader import PlanReader
from service.core.iteration import IterationPlan, IterationResult
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.core.sequence_group import SequenceGroup
from service.engine.ports import PendingIteration
from service.kvcache.block_manager import BlockManager, Fit

_PROMPT_PADDING_ID = -1000
_COLUMNS_ID = -1_000_000
"""Padding's sequences have ids from here downwards."""

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class PaddedContiguousAdmission:
    """Admits while the rectangle that the batch may become fits in the whole memory."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def fit(
        self,
        group: SequenceGroup,
        prefix: list[int],
        blocks: BlockManager,
        running: Sequence[SequenceGroup],
        num_promised: int = 0,
    ) -> Fit:
        """See `service/scheduler/admission.py`."""
        return Fit.OK if rectangle_tokens([*running, group]) <= self._num_tokens else Fit.LATER


def rectangle_tokens(groups: Sequence[SequenceGroup]) -> int:
    """KV tokens that the batch of these requests reserves."""
    rows = [sequence for group in groups for sequence in group.live]
    width = max((row.num_tokens for row in rows), default=0)
    to_draw = max((row.max_num_tokens - row.num_tokens for row in rows), default=0)
    return len(rows) * (width + to_draw)


class PaddedBatch:
    """An executor that computes prompts and decodes in separate iterations, with the padding of both.

    Sequences of its own, in the pool's spare blocks, compute the padding. Beside prompts they draw nothing; padding
    beyond the executor's token limit runs in further plans. Beside decodes, each stands for as many padded columns as
    the spare blocks hold, rounded, and what it draws is dropped. Iterations must not overlap.
    """

    def __init__(self, pool: KvPool) -> None:
        assert not pool.overlap
        self._pool = pool
        self._reader = PlanReader()
        self._num_columns_rows = 0
        self._to_release: tuple[int, ...] = ()
        self._first_row = 2 * pool.max_num_seqs + 1  # after those of requests

    def launch(self, plan: IterationPlan) -> PendingIteration:
        """As the wrapped executor, but slower."""
        plan = self._reader.expand(plan)
        prompts = tuple(item for item in plan.scheduled if len(item.token_ids) > 1)
        decodes = tuple(item for item in plan.scheduled if len(item.token_ids) == 1)
        released = self._forgotten(plan) + plan.released
        drawn: dict[int, int] = {}
        for part in self._prompt_plans(prompts):
            drawn |= _draws(part, self._run(dataclasses.replace(part, released=released)))
            released = ()
        last = dataclasses.replace(plan, scheduled=decodes + self._columns(decodes), released=released)
        return _Padded(plan, last, self._pool.executor.launch(last), drawn)

    def _run(self, plan: IterationPlan) -> IterationResult:
        self._to_release += tuple(i.row for i in plan.scheduled if i.sequence_id <= _PROMPT_PADDING_ID)
        return self._pool.executor.launch(plan).wait()

    def _forgotten(self, plan: IterationPlan) -> tuple[int, ...]:
        """Padding sequences that are no longer needed; all of them if the plan computes nothing."""
        released, self._to_release = self._to_release, ()
        if not plan.scheduled:
            released += tuple(self._first_row + number for number in range(self._num_columns_rows))
            self._num_columns_rows = 0
        return released

    def _prompt_plans(self, prompts: tuple[ScheduledSequence, ...]) -> Iterator[IterationPlan]:
        """The prompts with as much of their padding as fits, then the rest of the padding."""
        items = [*prompts, *self._prompt_padding(prompts)]
        while items:
            num_tokens = list(itertools.accumulate(len(item.token_ids) for item in items))
            count = max(1, bisect.bisect_right(num_tokens, self._pool.max_num_batched_tokens))
            yield IterationPlan(tuple(items[:count]))
            items = items[count:]

    def _prompt_padding(self, prompts: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
        longest = max((len(item.token_ids) for item in prompts), default=0)
        return [
            self._filler(number, longest - len(item.token_ids), item)
            for number, item in enumerate(prompts)
            if len(item.token_ids) < longest
        ]

    def _filler(self, number: int, num_tokens: int, beside: ScheduledSequence) -> ScheduledSequence:
        first, num_blocks = self._pool.num_blocks, -(-num_tokens // self._pool.block_size)
        assert num_blocks <= self._pool.num_spare_blocks
        block_ids = tuple(range(first, first + num_blocks))
        row = self._first_row + self._pool.max_num_seqs + number
        token_ids = (0,) * num_tokens
        return ScheduledSequence(_PROMPT_PADDING_ID - number, row, token_ids, 0, 0, block_ids, beside.sampling, ())

    def _columns(self, decodes: tuple[ScheduledSequence, ...]) -> tuple[ScheduledSequence, ...]:
        """Decodes that together read as many cached tokens as there are padded columns."""
        lengths = [item.num_computed_tokens + 1 for item in decodes]
        num_padded = len(lengths) * max(lengths, default=0) - sum(lengths)
        num_blocks = self._pool.num_spare_blocks
        num_tokens = num_blocks * self._pool.block_size
        count = min(round(num_padded / num_tokens), self._pool.max_num_seqs - len(decodes))
        known, self._num_columns_rows = self._num_columns_rows, max(self._num_columns_rows, count)
        return tuple(
            ScheduledSequence(
                _COLUMNS_ID - number,
                self._first_row + number,
                (0,),
                num_tokens - 1,
                0,
                () if number < known else self._column_blocks(number),
                _GREEDY,
                (Sample(_COLUMNS_ID - number, _COLUMNS_ID - number),),
            )
            for number in range(count)
        )

    def _column_blocks(self, number: int) -> tuple[int, ...]:
        """Blocks of other sequences, only to be read; the last one is spare, since a token is written there."""
        pool = self._pool
        first = number * pool.num_spare_blocks
        read = tuple((first + i) % pool.num_blocks for i in range(pool.num_spare_blocks - 1))
        return (*read, pool.num_blocks)


class _Padded:
    """The result of several plans, as if they were one."""

    def __init__(
        self, plan: IterationPlan, last: IterationPlan, pending: PendingIteration, drawn: dict[int, int]
    ) -> None:
        self._plan = plan
        self._last = last
        self._pending = pending
        self._drawn = drawn

    def is_done(self) -> bool:
        return self._pending.is_done()

    def wait(self) -> IterationResult:
        result = self._pending.wait()
        drawn = self._drawn | _draws(self._last, result)
        ids = tuple(drawn[sample.sequence_id] for item in self._plan.scheduled for sample in item.samples)
        return IterationResult(ids, result.finished_transfers)


def _draws(plan: IterationPlan, result: IterationResult) -> dict[int, int]:
    """Sequence id -> drawn id."""
    samples = (sample for item in plan.scheduled for sample in item.samples)
    return {sample.sequence_id: token_id for sample, token_id in zip(samples, result.token_ids, strict=True)}


def simple_req_manager(pool: KvPool, known_limit: KnownLimit, name: str = "SimpleReqManager") -> EngineSystem:
    """The system. The pool needs enough spare blocks for the padding of the longest prompt."""
    policies = EnginePolicies(PaddedContiguousAdmission(pool.num_tokens), known_limit, held_tokens=rectangle_tokens)
    plain = dataclasses.replace(pool, overlap=False)
    padded = dataclasses.replace(plain, executor=PaddedBatch(plain))
    return EngineSystem(name, padded, policies)
