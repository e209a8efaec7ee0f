"""A plan in the making."""

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
    """A sequence computes its tokens before position `end`, and draws. Behind drafts it is not known which ids are its
    own: then `draws` is empty, and each draft has an Advance like its sequence's."""

    group: SequenceGroup
    sequence: Sequence
    end: int
    draws: tuple[Sample, ...]


class PlanDraft:
    """The plan of iteration `number`, decided at `now_s`; what is done for it is counted in `tally`.

    budget: prompt tokens left to schedule; first those of others, then those in the background. members, decodes: of
    the decode batch, already counted as computed; no members if it has none. scheduled, advances: the other sequences,
    one entry in each, not counted yet. has_drafts: some of these are drafts. sitting_out: groups, by order of arrival,
    for which there are no blocks before transfers have finished.
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
        """Sequences with one token to compute, while no other was added."""
        return len(self.decodes) + len(self.scheduled)

    @property
    def num_read(self) -> int:
        """Tokens that these attend to."""
        of_others = sum(item.num_computed_tokens + 1 for item in self.scheduled)
        return int(self.decodes.num_computed_tokens.sum()) + len(self.decodes) + of_others

    def leave_to_background(self, most: int | None) -> None:
        """What is left of the budget, and no more than so much, is for prompts in the background. Said before each."""
        if not self._is_in_background and most is not None:
            self.budget = min(self.budget, most)
        self._is_in_background = True

    def add(self, group: SequenceGroup, sequence: Sequence, end: int, table: BlockTable) -> None:
        """The sequence computes its tokens before position `end`, and draws if those are all. table: its own."""
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
        """The sequence computes its last token, and behind it these drafts, for which its blocks have room."""
        self.add(group, sequence, sequence.num_tokens, table)
        first, start = self.scheduled[-1], sequence.num_tokens
        self.scheduled += (
            first._replace(token_ids=(token_id,), num_computed_tokens=start + i, table_start=0, block_ids=(), past=None)
            for i, token_id in enumerate(drafts)
        )
        self.advances[-1:] = [self.advances[-1]._replace(draws=())] * (1 + len(drafts))
        self.has_drafts = True

    def add_chunk(self, group: SequenceGroup, sequence: Sequence, table: BlockTable) -> None:
        """As many of the sequence's tokens as the budget has left."""
        end = min(sequence.num_computed_tokens + self.budget, sequence.num_tokens)
        self.add(group, sequence, end, table)

    def plan(self, released: tuple[int, ...], *, awaits_transfer: bool) -> IterationPlan:
        """It is made."""
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
    """Of a prompt's chunk of so many tokens. is_last: of the prompt."""
    if pooling == "mean":
        return num_tokens
    return int(pooling == "last" and is_last)
