"""Decodes in lockstep: what most iterations are made of, decided at little more than the cost of writing the plan.

A running request whose only choice decodes needs one thing now and then: a new block, once in block_size iterations.
Such requests advance together. Each iteration computes the next token of every one of them, and examines only those
whose block is full or whose last token has been drawn: a calendar lists them under the step at which that happens. All
other running groups are `apart` and examined in every iteration: prompts, several choices, beams, groups whose blocks
are being copied to or from the host, and groups whose drawn ids the host must know. While nobody joins or leaves, not
even the others are touched: such iterations are a run (lockstep_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledSequence, SharesGoingOn
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.lockstep_decode import LockstepDecode
from service.scheduler.lockstep_run import LONGEST_RUN, LockstepRun, RunningTogether
from service.scheduler.plan_draft import PlanDraft

_scheduled_sequence: Callable[[tuple[object, ...]], ScheduledSequence] = partial(tuple.__new__, ScheduledSequence)
"""What the named tuple's own constructor ends in, at half the cost."""


class Lockstep:
    """Engine thread only. Every running group is either a member or `apart` (keyed by order of arrival, in order of
    start).

    Each member computes the last of its tokens in every iteration, and the executor knows its block table. With every
    group `apart` the decisions are the same, only slower: that is the plain twin.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.apart: dict[int, SequenceGroup] = {}
        self._blocks = blocks
        self._members: dict[int, LockstepDecode] = {}
        self._in_order: tuple[LockstepDecode, ...] | None = None  # the members, as long as they stay the same
        self._step = 0
        self._calendar: dict[int, list[LockstepDecode]] = {}
        self._run: LockstepRun | None = None
        self._together: RunningTogether | None = None

    def __len__(self) -> int:
        return len(self._members)

    @property
    def run(self) -> LockstepRun | None:
        """The run that is open, if one is."""
        return self._run if self._run is not None and self._run.is_open else None

    @property
    def num_ahead(self) -> int:
        """Tokens that each member has computed, or is computing, beyond what its sequence says."""
        run = self.run
        return 0 if run is None else run.num_launched

    def close_run(self) -> None:
        """The members' sequences and groups are up to date from now on."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def start(self, group: SequenceGroup) -> None:
        """The group runs from now on."""
        self.apart[group.arrival_order] = group

    def stop(self, group: SequenceGroup) -> None:
        """The group runs no more. No run is open."""
        if self.apart.pop(group.arrival_order, None) is None:
            decode = self._members.pop(group.arrival_order, None)
            if decode is not None:
                decode.leave()
                self._in_order = None

    def dissolve(self, running: Iterable[SequenceGroup]) -> None:
        """From now on every group is apart. running: all of them, in order of start."""
        self.close_run()
        for decode in self._members.values():
            decode.leave()
        self._members.clear()
        self._in_order = None
        self._calendar.clear()
        self.apart = {group.arrival_order: group for group in running}

    def join(self, group: SequenceGroup, sequence: Sequence) -> None:
        """The group becomes a member. All tokens of its only sequence are computed, or being computed, but the last,
        whose id may be pending. No run is open."""
        del self.apart[group.arrival_order]
        decode = LockstepDecode(group, sequence, self._blocks.table(sequence.sequence_id))
        self._members[group.arrival_order] = decode
        self._in_order = None
        self._note([decode])

    def members(self) -> tuple[LockstepDecode, ...]:
        """In the order of an iteration; one and the same object as long as they are the same."""
        if self._in_order is None:
            self._in_order = tuple(self._members.values())
            for place, decode in enumerate(self._in_order):
                decode.place = place
        return self._in_order

    def lacking(self) -> list[LockstepDecode]:
        """The members that need a block for their next token. Members whose last token is drawn, or being drawn, become
        apart."""
        due = self._calendar.get(self._step)
        if due is None:
            return []
        members, lacking = self._members, list[LockstepDecode]()
        for decode in due:
            if members.get(decode.group.arrival_order) is not decode:
                continue
            if len(decode.token_ids) + self.num_ahead >= decode.sequence.max_num_tokens:
                self.close_run()
                del members[decode.group.arrival_order]
                decode.leave()
                self._in_order = None
                self.apart[decode.group.arrival_order] = decode.group
            else:
                lacking.append(decode)
        self._calendar[self._step] = lacking
        return lacking

    def advance(self, draft: PlanDraft) -> None:
        """Each member computes its last token. The caller has made sure of free blocks for all that are `lacking`, and
        no run is open.

        `draft.in_lockstep` is `members`.
        """
        members = self.members()
        grown = self._grow()
        number, add = draft.number, draft.scheduled.append
        for decode in members:
            sequence, token_ids = decode.sequence, decode.token_ids
            start = sequence.num_computed_tokens
            add(
                _scheduled_sequence(
                    (
                        decode.sequence_id,
                        (token_ids[start],),
                        start,
                        decode.table_start,
                        decode.block_ids,
                        decode.sampling,
                        decode.samples,
                        None,
                        (),
                    )
                )
            )
            sequence.num_computed_tokens = start + 1
            sequence.last_iteration = number
            token_ids.append(PENDING_TOKEN_ID)
        draft.in_lockstep = members
        self._end_step(grown)

    def go_on(self, draft: PlanDraft, before: SharesGoingOn) -> SharesGoingOn:
        """As `advance`, where the members are those of the iteration before, in which nobody else was. before: their
        shares there. If the iteration is one of a run, that is `run` from now on."""
        members, grown = self.members(), self._grow()
        run = self._next_run(members)
        if run is not None:
            run.launch(draft.number)
        else:
            _go_on_one_by_one(members, draft.number)
        shares = before.further({each.place: (each.table_start, each.block_ids) for each in grown})
        draft.in_lockstep = members
        self._end_step(grown)
        return shares

    def check_invariants(self, running: Iterable[SequenceGroup]) -> None:
        """Raise AssertionError unless every group is in one place, and every member has room until its turn comes."""
        together = [decode.group.arrival_order for decode in self._members.values()]
        assert sorted([*together, *self.apart]) == sorted(group.arrival_order for group in running)
        turns = {id(decode): step for step, decodes in self._calendar.items() for decode in decodes}
        assert self.run is None or self.run.members == self.members()
        for decode in self._members.values():
            steps = turns[id(decode)] - self._step
            room = len(self._blocks.tables[decode.sequence_id].block_ids) * self._blocks.block_size
            num_tokens = len(decode.token_ids) + self.num_ahead
            assert steps >= 0
            assert decode.token_ids is decode.sequence.token_ids
            assert num_tokens + steps - 1 <= min(room, decode.sequence.max_num_tokens - 1)

    def _next_run(self, members: tuple[LockstepDecode, ...]) -> LockstepRun | None:
        """The run of the next iteration; None if that one goes sequence by sequence, as the one behind a long run does:
        what comes between two runs looks at the members."""
        if self.num_ahead:
            if self.num_ahead >= LONGEST_RUN:
                self.close_run()
            return self._run
        together = self._together
        if together is None or together.members is not members:
            together = self._together = RunningTogether(members, self._step)
        self._run = LockstepRun(together, self._step) if together.is_possible else None
        return self._run

    def _grow(self) -> list[LockstepDecode]:
        """One block for each that is `lacking`."""
        lacking = self._calendar.pop(self._step, [])
        new_blocks = self._blocks.append_each([decode.sequence_id for decode in lacking])
        for decode, block_id in zip(lacking, new_blocks, strict=True):
            decode.block_ids = (block_id,)
        return lacking

    def _end_step(self, grown: list[LockstepDecode]) -> None:
        self._step += 1
        for decode in grown:
            decode.table_start += 1
            decode.block_ids = ()
        self._note(grown)

    def _note(self, decodes: Iterable[LockstepDecode]) -> None:
        """Enter them in the calendar: under the step at which their tokens exceed their blocks, or are as many as they
        may have. The executor knows their block tables as they are now."""
        block_size, calendar, step, num_ahead = self._blocks.block_size, self._calendar, self._step, self.num_ahead
        for decode in decodes:
            table_start = decode.table.changed_from = decode.table_start
            most = min(table_start * block_size + 1, decode.sequence.max_num_tokens)
            due = step + most - len(decode.token_ids) - num_ahead
            if due in calendar:
                calendar[due].append(decode)
            else:
                calendar[due] = [decode]


def _go_on_one_by_one(members: Iterable[LockstepDecode], number: int) -> None:
    """Each computes its last token in the iteration of that number: the plain twin of a run."""
    for decode in members:
        decode.sequence.num_computed_tokens += 1
        decode.sequence.last_iteration = number
        decode.token_ids.append(PENDING_TOKEN_ID)
