"""An IterationPlan as one control message, and back (ORCA, section 4.1: control messages travel apart from tensors).

What a plan repeats is not sent again: decodes that continue as in an earlier plan are one number, and sampling
parameters that a sequence keeps are left out. So both sides remember the same of what was sent: a decoder must decode
every message exactly once, in order. What they remember is bounded by the number of rows.

Of grammar masks only the rows are here. The masks are still being computed, and follow in a message of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.core.adapter import AdapterLoad
from service.core.block_moves import BlockCopy, Transfer
from service.core.grammar import TokenMasks
from service.core.iteration import NO_DECODES, GrownTables, Int64Array, IterationPlan, ScheduledDecodes
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.core.training import Arena, TrainingShare
from service.distributed.integers import IntegerReader, IntegerWriter
from service.distributed.sampling_codec import read_sampling, write_sampling

BATCHES_REMEMBERED = 8
"""How many versions of decodes are remembered: as many batches may be in flight, taking turns."""

(
    _SAME_DECODES,
    _SAME_MEMBERS,
    _GROWN,
    _SCHEDULED,
    _RELEASED,
    _COPIES,
    _TRANSFERS,
    _AWAITS,
    _MASKS,
    _ADAPTERS,
    _TRAINING,
) = (1 << place for place in range(11))
_HAS_DECODES = 1 << 11
_SAMPLING_OF_ROW, _SAMPLING_OF_LAST, _SAMPLING_NEW = range(3)
_HAS_PAST, _HAS_TARGETS = 1 << 2, 1 << 3


@dataclass(slots=True)
class _Batch:
    """The decodes of one version as last sent.

    next_tokens: num_computed_tokens of the next plan with this version, unless that plan sends its own.
    """

    sequence_ids: Int64Array
    rows: Int64Array
    seeds: Int64Array
    next_tokens: Int64Array
    num_new_tokens: Int64Array


class _Memory:
    """What one side remembers of the messages so far: sampling parameters by row, decodes by version."""

    def __init__(self) -> None:
        self.sampling: dict[int, SamplingParams] = {}
        self.batches: dict[int, _Batch] = {}

    def keep(self, version: int, batch: _Batch) -> None:
        """If there are too many, the oldest is forgotten."""
        self.batches.pop(version, None)
        self.batches[version] = batch
        if len(self.batches) > BATCHES_REMEMBERED:
            del self.batches[next(iter(self.batches))]

    def advance(self, batch: _Batch) -> None:
        batch.next_tokens = batch.next_tokens + batch.num_new_tokens


class PlanEncoder:
    def __init__(self) -> None:
        self._memory = _Memory()

    def encode(self, plan: IterationPlan) -> bytes:
        to = IntegerWriter()
        known = self._memory.batches.get(plan.decodes.version)
        flags = self._flags(plan, known)
        to.one(flags)
        if flags & _HAS_DECODES:
            self._write_decodes(to, plan.decodes, flags, known)
        if flags & _RELEASED:
            to.many(plan.released)
            for row in plan.released:
                self._memory.sampling.pop(row, None)
        if flags & _SCHEDULED:
            self._write_scheduled(to, plan.scheduled)
        if flags & _COPIES:
            to.many([copy.source for copy in plan.copies])
            to.many([copy.destination for copy in plan.copies])
        if flags & _TRANSFERS:
            to.one(len(plan.transfers))
            for transfer in plan.transfers:
                to.one(transfer.transfer_id)
                to.one(transfer.to_host)
                to.many(transfer.device_blocks)
                to.many(transfer.host_blocks)
        if plan.masks is not None:
            to.many(plan.masks.rows)
        if flags & _ADAPTERS:
            to.one(len(plan.adapter_loads))
            for load in plan.adapter_loads:
                to.one(load.slot)
                to.one(load.adapter_id)
                to.many(load.block_ids)
        if plan.training is not None:
            arena = plan.training.arena
            to.one(plan.training.training_id)
            to.one(plan.training.num_layer_steps)
            to.many(() if arena is None else arena)
        return to.message()

    def _flags(self, plan: IterationPlan, known: _Batch | None) -> int:
        flags = _SCHEDULED if plan.scheduled else 0
        flags |= _RELEASED if plan.released else 0
        flags |= _COPIES if plan.copies else 0
        flags |= _TRANSFERS if plan.transfers else 0
        flags |= _AWAITS if plan.awaits_transfer else 0
        flags |= _MASKS if plan.masks is not None else 0
        flags |= _ADAPTERS if plan.adapter_loads else 0
        flags |= _TRAINING if plan.training is not None else 0
        return flags | self._flags_of_decodes(plan.decodes, known)

    def _flags_of_decodes(self, decodes: ScheduledDecodes, known: _Batch | None) -> int:
        if decodes is NO_DECODES:
            return 0
        flags = _HAS_DECODES | (_GROWN if len(decodes.grown.places) else 0)
        if known is None or not (
            _equal(known.sequence_ids, decodes.sequence_ids)
            and _equal(known.rows, decodes.rows)
            and _equal(known.seeds, decodes.seeds)
        ):
            return flags
        goes_on = (
            np.array_equal(known.next_tokens, decodes.num_computed_tokens)
            and _equal(known.num_new_tokens, decodes.num_new_tokens)
            and decodes.num_tokens == known.num_new_tokens.sum()
        )
        return flags | _SAME_MEMBERS | (_SAME_DECODES if goes_on else 0)

    def _write_decodes(self, to: IntegerWriter, decodes: ScheduledDecodes, flags: int, known: _Batch | None) -> None:
        to.one(decodes.version)
        if known is None or not flags & _SAME_MEMBERS:
            for column in (decodes.sequence_ids, decodes.rows, decodes.seeds):
                to.column(column)
            known = _Batch(decodes.sequence_ids, decodes.rows, decodes.seeds, decodes.rows, decodes.rows)
            self._memory.keep(decodes.version, known)
        if not flags & _SAME_DECODES:
            to.column(decodes.num_computed_tokens)
            to.column(decodes.num_new_tokens)
            to.one(decodes.num_tokens)
            # Copies: the scheduler may write to its columns again.
            known.next_tokens, known.num_new_tokens = decodes.num_computed_tokens.copy(), decodes.num_new_tokens.copy()
        if flags & _GROWN:
            for column in decodes.grown:
                to.column(column)
        self._memory.advance(known)

    def _write_scheduled(self, to: IntegerWriter, scheduled: tuple[ScheduledSequence, ...]) -> None:
        to.one(len(scheduled))
        last: SamplingParams | None = None
        for item in scheduled:
            how = self._how_sampling(item, last)
            last = self._memory.sampling[item.row] = item.sampling
            to.one(how | (_HAS_PAST if item.past is not None else 0) | (_HAS_TARGETS if item.targets else 0))
            to.one(item.sequence_id)
            to.one(item.row)
            to.many(item.token_ids)
            to.one(item.num_computed_tokens)
            to.one(item.table_start)
            to.many(item.block_ids)
            if how == _SAMPLING_NEW:
                write_sampling(to, item.sampling)
            to.one(len(item.samples))
            for sample in item.samples:
                to.one(sample.sequence_id)
                to.one(sample.seed)
            if item.past is not None:
                to.many(item.past.token_ids)
                to.one(item.past.num_prompt_tokens)
            if item.targets:
                to.many(item.targets)
            to.one(item.adapter_slot)
            if item.sampling.pooling is not None:
                to.one(item.num_pooled)

    def _how_sampling(self, item: ScheduledSequence, last: SamplingParams | None) -> int:
        """By identity: a request has one object, and comparing values may take as long as sending them."""
        if self._memory.sampling.get(item.row) is item.sampling:
            return _SAMPLING_OF_ROW
        return _SAMPLING_OF_LAST if last is item.sampling else _SAMPLING_NEW


class PlanDecoder:
    """masks_of: makes a plan's masks from their rows; the caller knows how the masks themselves arrive."""

    def __init__(self, masks_of: Callable[[tuple[int, ...]], TokenMasks]) -> None:
        self._memory = _Memory()
        self._masks_of = masks_of

    def decode(self, message: bytes) -> IterationPlan:
        """Raises ValueError for a message that does not continue what this decoder has seen."""
        source = IntegerReader(message)
        flags = source.one()
        decodes = self._read_decodes(source, flags) if flags & _HAS_DECODES else NO_DECODES
        released = source.many() if flags & _RELEASED else ()
        for row in released:
            self._memory.sampling.pop(row, None)
        scheduled = self._read_scheduled(source) if flags & _SCHEDULED else ()
        copies = tuple(map(BlockCopy, source.many(), source.many())) if flags & _COPIES else ()
        transfers = tuple(_read_transfer(source) for _ in range(source.one())) if flags & _TRANSFERS else ()
        masks = self._masks_of(source.many()) if flags & _MASKS else None
        adapter_loads = tuple(_read_load(source) for _ in range(source.one())) if flags & _ADAPTERS else ()
        training = _read_training(source) if flags & _TRAINING else None
        if not source.is_at_end:
            raise ValueError("a control message is longer than its plan")
        return IterationPlan(
            scheduled, copies, released, transfers, bool(flags & _AWAITS), masks, decodes, adapter_loads, training
        )

    def _read_decodes(self, source: IntegerReader, flags: int) -> ScheduledDecodes:
        version = source.one()
        if not flags & _SAME_MEMBERS:
            sequence_ids, rows, seeds = source.column(), source.column(), source.column()
            self._memory.keep(version, _Batch(sequence_ids, rows, seeds, rows, rows))
        if version not in self._memory.batches:
            raise ValueError(f"decodes of version {version} were never sent")
        batch = self._memory.batches[version]
        if flags & _SAME_DECODES:
            num_tokens = int(batch.num_new_tokens.sum())
        else:
            batch.next_tokens, batch.num_new_tokens = source.column(), source.column()
            num_tokens = source.one()
        grown = GrownTables(*(source.column() for _ in range(3)) if flags & _GROWN else (_NONE, _NONE, _NONE))
        decodes = ScheduledDecodes(
            version,
            batch.sequence_ids,
            batch.rows,
            batch.seeds,
            batch.next_tokens,
            batch.num_new_tokens,
            num_tokens,
            grown,
        )
        self._memory.advance(batch)
        return decodes

    def _read_scheduled(self, source: IntegerReader) -> tuple[ScheduledSequence, ...]:
        last: SamplingParams | None = None
        scheduled = []
        for _ in range(source.one()):
            flags = source.one()
            sequence_id, row, token_ids = source.one(), source.one(), source.many()
            num_computed_tokens, table_start, block_ids = source.one(), source.one(), source.many()
            last = self._memory.sampling[row] = self._read_sampling(source, flags & 3, row, last)
            samples = tuple(Sample(source.one(), source.one()) for _ in range(source.one()))
            past = Past(source.many(), source.one()) if flags & _HAS_PAST else None
            targets = source.many() if flags & _HAS_TARGETS else ()
            slot = source.one()
            num_pooled = source.one() if last.pooling is not None else 0
            scheduled.append(
                ScheduledSequence(
                    sequence_id,
                    row,
                    token_ids,
                    num_computed_tokens,
                    table_start,
                    block_ids,
                    last,
                    samples,
                    past,
                    targets,
                    slot,
                    num_pooled,
                )
            )
        return tuple(scheduled)

    def _read_sampling(self, source: IntegerReader, how: int, row: int, last: SamplingParams | None) -> SamplingParams:
        if how == _SAMPLING_NEW:
            return read_sampling(source)
        known = self._memory.sampling.get(row) if how == _SAMPLING_OF_ROW else last
        if known is None:
            raise ValueError(f"sampling parameters of row {row} were never sent")
        return known


_NONE: Int64Array = np.empty(0, np.int64)


def _equal(one: Int64Array, other: Int64Array) -> bool:
    return one is other or np.array_equal(one, other)


def _read_transfer(source: IntegerReader) -> Transfer:
    return Transfer(source.one(), bool(source.one()), source.many(), source.many())


def _read_load(source: IntegerReader) -> AdapterLoad:
    return AdapterLoad(source.one(), source.one(), source.many())


def _read_training(source: IntegerReader) -> TrainingShare:
    training_id, num_layer_steps, arena = source.one(), source.one(), source.many()
    return TrainingShare(training_id, num_layer_steps, Arena(*arena) if arena else None)
