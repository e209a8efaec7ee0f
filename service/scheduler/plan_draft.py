"""A plan under construction."""

from __future__ import annotations

from typing import NamedTuple

from service.core.adapter import AdapterLoad
from service.core.block_moves import BlockCopy, Transfer
from service.core.embedding import Pooling
from service.core.iteration import NO_DECODES, IterationPlan
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_table import BlockTable
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.decode_batch import DecodeMembers


class Advance(NamedTuple):
    """The sequence computes its tokens before position `end`, then draws. With drafts it is unknown which draws will
    count: `draws` is then empty, and every draft adds an equal Advance."""

    group: SequenceGroup
    sequence: Sequence
    end: int
    draws: tuple[Sample, ...]


class PlanDraft:
    """The plan of iteration `number`, decided at `now_s`. Counts go to `tally`.

    budget: prompt tokens left to schedule, first for other requests, then for background ones.
    members, decodes: the decode batch, already advanced; members is None if it is empty.
    scheduled, advances: the other sequences, one entry in each list; not advanced yet. has_drafts: some are drafts.
    sitting_out: arrival orders of groups that skip this iteration because blocks only come free by transfers.
    """

    __slots__ = (
        "_adapter_slots",
        "_is_in_background",
        "adapter_loads",
        "advances",
        "budget",
        "copies",
        "decodes",
        "has_drafts",
        "members",
        "now_s",
        "number",
        "scheduled",
        "sitting_out",
        "tally",
        "transfers",
    )

    def __init__(self, number: int, now_s: float, tally: DecisionTally, adapter_slots: AdapterSlots) -> None:
        self.number = number
        self.now_s = now_s
        self.tally = tally
        self._adapter_slots = adapter_slots
        self.budget = 0
        self.members: DecodeMembers | None = None
        self.decodes = NO_DECODES
        self.scheduled: list[ScheduledSequence] = []
        self.advances: list[Advance] = []
        self.copies: list[BlockCopy] = []
        self.transfers: list[Transfer] = []
        self.adapter_loads: list[AdapterLoad] = []
        self.has_drafts = False
        self.sitting_out: set[int] = set()
        self._is_in_background = False

    @property
    def computes(self) -> bool:
        return self.members is not None or bool(self.scheduled)

    @property
    def num_decodes(self) -> int:
        """Decodes scheduled so far. Only valid before any prompt chunk was added."""
        return len(self.decodes) + len(self.scheduled)

    @property
    def num_read(self) -> int:
        """Tokens that these decodes attend to."""
        of_others = sum(item.num_computed_tokens + 1 for item in self.scheduled)
        return int(self.decodes.num_computed_tokens.sum()) + len(self.decodes) + of_others

    def leave_to_background(self, most: int | None) -> None:
        """From now on only background prompts follow, with at most `most` tokens in all (None: no limit). Call before
        each of them; only the first call has an effect."""
        if not self._is_in_background and most is not None:
            self.budget = min(self.budget, most)
        self._is_in_background = True

    def add(self, group: SequenceGroup, sequence: Sequence, end: int, table: BlockTable) -> None:
        """Schedule the sequence's tokens before position `end`; it draws if these are all. table: its block table."""
        start = sequence.num_computed_tokens
        sampling = group.request.sampling
        draws: tuple[Sample, ...] = ()
        if end == len(sequence.token_ids) and sampling.max_tokens > 0:
            is_one = group.is_forked or sampling.beam is not None
            draws = sequence.draws if is_one else tuple(s.draw for s in group.live)
        past: Past | None = None
        if sampling.looks_back and not table.is_told:
            past = Past(tuple(sequence.token_ids[:start]), sequence.num_prompt_tokens)
        targets: tuple[int, ...] = ()
        if group.prompt_logprobs is not None:
            targets = group.request.prompt_token_ids[start + 1 : end + 1]
        table_start, block_ids = table.take_changes()
        token_ids = tuple(sequence.token_ids[start:end])
        if end - start > 1:
            group.journal.note_chunk(self.now_s, end - start, draws=bool(draws))
        self.budget -= end - start
        self.advances.append(Advance(group, sequence, end, draws))
        self.scheduled.append(
            ScheduledSequence(
                sequence.sequence_id,
                table.row,
                token_ids,
                start,
                table_start,
                block_ids,
                sampling,
                draws,
                past,
                targets,
                self._adapter_slots.slot_of(group.request.adapter),
                _num_pooled(sampling.pooling, end - start, is_last=end == sequence.num_prompt_tokens),
            )
        )

    def add_with_drafts(
        self, group: SequenceGroup, sequence: Sequence, table: BlockTable, drafts: tuple[int, ...]
    ) -> None:
        """Schedule the sequence's last token, followed by these drafts. Its blocks must have room for them."""
        self.add(group, sequence, sequence.num_tokens, table)
        first, start = self.scheduled[-1], sequence.num_tokens
        self.scheduled += (
            first._replace(token_ids=(token_id,), num_computed_tokens=start + i, table_start=0, block_ids=(), past=None)
            for i, token_id in enumerate(drafts)
        )
        self.advances[-1:] = [self.advances[-1]._replace(draws=())] * (1 + len(drafts))
        self.has_drafts = True

    def add_chunk(self, group: SequenceGroup, sequence: Sequence, table: BlockTable) -> None:
        """Schedule as many of the sequence's tokens as the budget allows."""
        end = min(sequence.num_computed_tokens + self.budget, sequence.num_tokens)
        self.add(group, sequence, end, table)

    def plan(self, released: tuple[int, ...], *, awaits_transfer: bool) -> IterationPlan:
        """The finished plan."""
        return IterationPlan(
            tuple(self.scheduled),
            tuple(self.copies),
            released,
            tuple(self.transfers),
            awaits_transfer,
            decodes=self.decodes,
            adapter_loads=tuple(self.adapter_loads),
        )


def _num_pooled(pooling: Pooling | None, num_tokens: int, *, is_last: bool) -> int:
    """`ScheduledSequence.num_pooled` of a prompt chunk with `num_tokens` tokens. is_last: it ends the prompt."""
    if pooling == "mean":
        return num_tokens
    return int(pooling == "last" and is_last)
