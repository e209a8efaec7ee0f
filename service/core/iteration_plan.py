"""What one iteration computes: an immutable value, complete at birth, the scheduler's only message to the executor.

The executor keeps, per sequence, what does not change (parameters) and what grows (block table); the plan carries
the changes. So a plan is small, and one compact message could carry it to other ranks (ORCA section 5: control
plane apart from data plane).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


SEQUENCE_ID, TOKEN_IDS, START, BLOCK_IDS, SAMPLES = map(itemgetter, (0, 1, 2, 4, 6))
SEED = itemgetter(1)
"""Fields of a ScheduledSequence, and of a Sample, for `map`: a third of what the attribute costs."""


class SharesGoingOn(Sequence[ScheduledSequence]):
    """The shares of a plan that goes on from the last one that had any: they are the same, in the same order, one token
    further. Each sequence computes the one that it drew there, and the executor may go on from what it has made of that
    plan. So few of them are ever looked at, and each is made when it is.

    first: shares of the same sequences in an earlier plan, `num_further` tokens before this one. grown: place of a
    share -> its table_start and block_ids; the tables of the others are unchanged. num_computed_tokens: of all of them.
    """

    __slots__ = ("_first", "_num_further", "grown", "num_computed_tokens")

    def __init__(
        self,
        first: Sequence[ScheduledSequence],
        num_further: int,
        grown: Mapping[int, tuple[int, tuple[int, ...]]],
    ) -> None:
        self._first = first
        self._num_further = num_further
        self.grown = grown
        self.num_computed_tokens: int = sum(map(START, first)) + num_further * len(first)

    def further(self, grown: Mapping[int, tuple[int, tuple[int, ...]]]) -> SharesGoingOn:
        """One token further than these. Looks at none of them."""
        shares = SharesGoingOn((), self._num_further + 1, grown)
        shares._first = self._first
        shares.num_computed_tokens = self.num_computed_tokens + len(self._first)
        return shares

    @property
    def starts(self) -> list[int]:
        """`num_computed_tokens` of each."""
        num_further = self._num_further
        return [start + num_further for start in map(START, self._first)]

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, index: int) -> ScheduledSequence: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ScheduledSequence, ...]: ...

    def __getitem__(self, index: int | slice) -> ScheduledSequence | tuple[ScheduledSequence, ...]:
        if isinstance(index, slice):
            return tuple(map(self._share, range(len(self))[index]))
        return self._share(range(len(self))[index])

    def __iter__(self) -> Iterator[ScheduledSequence]:
        return map(self._share, range(len(self)))

    def _share(self, place: int) -> ScheduledSequence:
        first = self._first[place]
        table_start, block_ids = self.grown.get(place, (first.table_start, ()))
        return ScheduledSequence(
            first.sequence_id,
            (PENDING_TOKEN_ID,),
            first.num_computed_tokens + self._num_further,
            table_start,
            block_ids,
            first.sampling,
            first.samples,
        )


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
    """

    scheduled: Sequence[ScheduledSequence]
    copies: tuple[BlockCopy, ...] = ()
    released: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaits_transfer: bool = False
    masks: TokenMasks | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.scheduled, SharesGoingOn):
            self._check_scheduled()
        if self.copies or self.transfers:
            self._check_blocks()

    def _check_scheduled(self) -> None:
        ids = set(map(SEQUENCE_ID, self.scheduled))
        assert len(ids) == len(self.scheduled), "a sequence is scheduled once an iteration"
        assert all(map(TOKEN_IDS, self.scheduled)), "a scheduled sequence computes at least one token"

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
    def draws(self) -> bool:
        """Whether any id is drawn."""
        if isinstance(self.scheduled, SharesGoingOn):
            return True
        return any(item.samples for item in self.scheduled)

    def token_counts(self) -> list[int]:
        """How many tokens each of `scheduled` computes."""
        if isinstance(self.scheduled, SharesGoingOn):
            return [1] * len(self.scheduled)
        return list(map(len, map(TOKEN_IDS, self.scheduled)))

    def starts(self) -> Sequence[int]:
        """`num_computed_tokens` of each of `scheduled`."""
        return self.scheduled.starts if isinstance(self.scheduled, SharesGoingOn) else [*map(START, self.scheduled)]

    @property
    def num_scheduled_tokens(self) -> int:
        return len(self.scheduled) if isinstance(self.scheduled, SharesGoingOn) else sum(self.token_counts())
