"""What one iteration computes: an immutable value, complete at birth, the scheduler's only message to the executor.

The executor keeps, per sequence, what does not change (parameters) and what grows (block table); the plan carries
the changes. So a plan is small, and one compact message could carry it to other ranks (ORCA, section 4.1: control
messages apart from tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import NamedTuple, overload

from service.core.grammar import TokenMasks
from service.core.sampling_params import SamplingParams

PENDING_TOKEN_ID = -2
"""Stands for the id that the sequence drew last, while the host does not know it yet."""


class Sample(NamedTuple):
    """One id to be drawn from the logits of a scheduled sequence's last token.

    sequence_id: the sequence that gets the id (a sibling's, when a prompt's logits serve all n choices).
    seed: keys the draw together with the position of the new token.
    """

    sequence_id: int
    seed: int


class Past(NamedTuple):
    """What came before the scheduled tokens, for an executor that sees the sequence for the first time.

    token_ids: the ids at positions 0, 1, ..., num_computed_tokens - 1. num_prompt_tokens: of the whole sequence.
    """

    token_ids: tuple[int, ...]
    num_prompt_tokens: int


class ScheduledSequence(NamedTuple):
    """One sequence's share of an iteration. A named tuple: hundreds are made in every iteration.

    token_ids: the ids to compute, at positions num_computed_tokens, num_computed_tokens + 1, ... The last one may be
        PENDING_TOKEN_ID: the executor takes the id that the sequence drew last, any valid id if that draw failed.
    num_computed_tokens: tokens before them whose keys and values are in the cache.
    table_start, block_ids: the sequence's block table from index `table_start` on is now `block_ids`; entries
        before it are as the executor last saw them. A sequence new to the executor has table_start 0.
        Empty when nothing changed.
    samples: draws from the last token's logits; empty for a prompt chunk that is not the last.
    past: given with table_start 0 if the sampling `looks_back`; of no use to an executor that knows the sequence.
    targets: if the prompt's logprobs are wanted, the prompt ids at positions num_computed_tokens + 1, ..., which the
        scheduled tokens predict. At the prompt's end they are one fewer than the scheduled tokens.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    table_start: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    samples: tuple[Sample, ...]
    past: Past | None = None
    targets: tuple[int, ...] = ()


SEQUENCE_ID, TOKEN_IDS, START, BLOCK_IDS, SAMPLES = (
    itemgetter(ScheduledSequence._fields.index(name))
    for name in ("sequence_id", "token_ids", "num_computed_tokens", "block_ids", "samples")
)
SEED = itemgetter(Sample._fields.index("seed"))
"""Fields of a ScheduledSequence, and of a Sample, for `map`: a third of what the attribute costs."""


_scheduled_sequence: Callable[[tuple[object, ...]], ScheduledSequence] = partial(tuple.__new__, ScheduledSequence)
"""What the named tuple's own constructor ends in, at half the cost."""


class _Shares(Sequence[ScheduledSequence]):
    """To be looked at from the first to the last: one by itself costs as much as all."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> ScheduledSequence: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ScheduledSequence, ...]: ...

    def __getitem__(self, index: int | slice) -> ScheduledSequence | tuple[ScheduledSequence, ...]:
        return tuple(self)[index]


class LockstepShares(_Shares):
    """Shares of sequences that decode in lockstep: each computes the token that it drew in the iteration before. They
    differ from iteration to iteration by one token; so they are made when they are looked at, and few ever are.

    first: the same sequences' shares, `num_further` tokens before these. grown: place of a share -> its table_start and
    block_ids; the tables of the others are unchanged. num_computed_tokens: their sum; num_first: that of `first`.
    """

    __slots__ = ("_first", "_num_further", "grown", "num_computed_tokens")

    def __init__(
        self,
        first: Sequence[ScheduledSequence],
        num_further: int,
        grown: Mapping[int, tuple[int, tuple[int, ...]]],
        num_first: int | None = None,
    ) -> None:
        self._first = first
        self._num_further = num_further
        self.grown = grown
        num_first = sum(map(START, first)) if num_first is None else num_first
        self.num_computed_tokens: int = num_first + num_further * len(first)

    def going_on(self) -> SharesGoingOn:
        """The same, of sequences that were alone in the last plan that had any."""
        num_first = self.num_computed_tokens - self._num_further * len(self._first)
        return SharesGoingOn(self._first, self._num_further, self.grown, num_first)

    @property
    def sequence_ids(self) -> Iterator[int]:
        """In the order of the shares."""
        return map(SEQUENCE_ID, self._first)

    @property
    def seeds(self) -> Iterator[int]:
        """Of the one draw of each."""
        return map(SEED, chain.from_iterable(map(SAMPLES, self._first)))

    @property
    def starts(self) -> list[int]:
        """`num_computed_tokens` of each."""
        num_further = self._num_further
        return [start + num_further for start in map(START, self._first)]

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        """All of them, without a step of Python for each."""
        if not self._first:
            return iter(())
        ids, _, _, table_starts, _, sampling, samples, *_ = zip(*self._first, strict=True)
        starts, blocks = [*table_starts], list[tuple[int, ...]]([()] * len(ids))
        for place, (table_start, block_ids) in self.grown.items():
            starts[place], blocks[place] = table_start, block_ids
        pending, nothing = (PENDING_TOKEN_ID,), ()
        columns = (ids, repeat(pending), self.starts, starts, blocks, sampling, samples, repeat(None), repeat(nothing))
        return map(_scheduled_sequence, zip(*columns, strict=False))


class SharesGoingOn(LockstepShares):
    """The shares of a plan that goes on from the last one that had any: the same sequences in the same order, one token
    further. So the executor may go on from the arrays that it has made for that plan."""

    __slots__ = ()


class MixedShares(_Shares):
    """Sequences that decode in lockstep, and behind them the others."""

    __slots__ = ("apart", "in_lockstep")

    def __init__(self, in_lockstep: LockstepShares, apart: tuple[ScheduledSequence, ...]) -> None:
        self.in_lockstep = in_lockstep
        self.apart = apart

    def __len__(self) -> int:
        return len(self.in_lockstep) + len(self.apart)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        return chain(self.in_lockstep, self.apart)


NOBODY = LockstepShares((), 0, {})


def parts_of(scheduled: Sequence[ScheduledSequence]) -> tuple[LockstepShares, Sequence[ScheduledSequence]]:
    """The shares in lockstep, which stand first, and the others. In a list or tuple all are others."""
    if isinstance(scheduled, MixedShares):
        return scheduled.in_lockstep, scheduled.apart
    return (scheduled, ()) if isinstance(scheduled, LockstepShares) else (NOBODY, scheduled)


class BlockCopy(NamedTuple):
    """Copy one block's keys and values, all layers, before the iteration writes (copy-on-write)."""

    source: int
    destination: int


class Transfer(NamedTuple):
    """Blocks that move between device and host beside the computation: device_blocks[i] <-> host_blocks[i].

    It starts after everything that earlier plans compute. Until the executor says that it has finished, no plan writes
    its blocks on either side, nor reads those that it fills. Blocks that are on their way to the host may be read, and
    moved once more: sequences that share a prefix may leave one after another.
    """

    transfer_id: int
    to_host: bool
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """One iteration, in the order: release, copy, compute, sample; transfers run beside that.

    released: ids of sequences that the executor may forget (finished, aborted or preempted); it may never have seen
        some of them. An id may return, in this plan or a later one, with table_start 0.
    copies: destinations are distinct, and none is the source of another.
    transfers: no device block is filled twice, or filled while it moves to the host; nor is a host block filled twice.
    awaits_transfer: nothing can run before some transfer has finished; the executor may wait for one.
    masks: which ids the draws may give, where grammars restrict them; to be waited for as late as possible.
    in_lockstep, apart: the two parts of `scheduled` (`parts_of`).
    """

    scheduled: Sequence[ScheduledSequence]
    copies: tuple[BlockCopy, ...] = ()
    released: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaits_transfer: bool = False
    masks: TokenMasks | None = None
    in_lockstep: LockstepShares = field(init=False, compare=False, repr=False)
    apart: Sequence[ScheduledSequence] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, part in zip(("in_lockstep", "apart"), parts_of(self.scheduled), strict=True):
            object.__setattr__(self, name, part)  # told apart once: they are asked for ten times
        self._check_apart()
        if self.copies or self.transfers:
            self._check_blocks()

    def _check_apart(self) -> None:
        apart = self.apart
        assert len(set(map(SEQUENCE_ID, apart))) == len(apart), "a sequence is scheduled once an iteration"
        assert all(map(TOKEN_IDS, apart)), "a scheduled sequence computes at least one token"

    def _check_blocks(self) -> None:
        destinations = {c.destination for c in self.copies}
        assert len(destinations) == len(self.copies), "a block is the destination of one copy"
        assert destinations.isdisjoint(c.source for c in self.copies), "copies do not chain"
        filled = [block_id for t in self.transfers if not t.to_host for block_id in t.device_blocks]
        leaving = {block_id for t in self.transfers if t.to_host for block_id in t.device_blocks}
        assert len(set(filled)) == len(filled), "a block is filled once"
        assert leaving.isdisjoint(filled), "a block that moves is not written"
        assert destinations.isdisjoint(leaving.union(filled)), "a block that moves is not written"

    @property
    def is_empty(self) -> bool:
        return not (self.scheduled or self.transfers or self.awaits_transfer)

    @property
    def num_draws(self) -> int:
        """Ids that are drawn."""
        return len(self.in_lockstep) + sum(map(len, map(SAMPLES, self.apart)))

    @property
    def num_scheduled_tokens(self) -> int:
        return len(self.in_lockstep) + sum(map(len, map(TOKEN_IDS, self.apart)))
