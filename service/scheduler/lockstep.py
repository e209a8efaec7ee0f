"""Decodes in lockstep: most iterations consist of little else, and to decide one costs next to nothing.

A running request whose only choice decodes needs one thing now and then: a new block, once in block_size iterations.
Such requests advance together. Each iteration computes the next token of every one of them, and examines only those
whose block is full or whose last token has been drawn: a calendar lists them under the step at which that happens. All
other running groups are `apart` and examined in every iteration: prompts, several choices, beams, groups whose blocks
are being copied to or from the host, and groups whose drawn ids the host must know.

Meanwhile their sequences and groups lag behind. A member's list of tokens is brought up to date (`settle`) when anybody
joins or leaves, when a drawn token must be looked at, and every LONGEST_RUN iterations; all else when it leaves.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from service.core.iteration_plan import LockstepShares
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.lockstep_decode import LockstepDecode
from service.scheduler.lockstep_members import LockstepIteration, LockstepMembers
from service.scheduler.plan_draft import PlanDraft

LONGEST_RUN = 32
"""Iterations of the same members whose drawn ids are kept as they came, until the lists of tokens get them."""


class Lockstep:
    """Engine thread only. Every running group is either a member or `apart` (keyed by order of arrival, in order of
    start).

    Each member computes the last of its tokens in every iteration, and the executor knows its block table. With every
    group `apart` the decisions are the same, only slower: that is the plain twin.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.apart: dict[int, SequenceGroup] = {}
        self._blocks = blocks
        self._decodes: dict[int, LockstepDecode] = {}
        self._members = LockstepMembers()
        self._num_joined = 0
        self._step = 0
        self._calendar: dict[int, list[LockstepDecode]] = {}
        self._looks: dict[int, list[LockstepDecode]] = {}  # whose tokens must be looked at, by step
        self._talkative: list[LockstepDecode] = []  # whose clients get more of a token than its id
        self._settled_until = 0  # iterations from this step on have no place in the members' tokens yet
        self._watched = Counter[int]()
        self._running: deque[LockstepIteration] = deque()
        self._last_number = 0
        self._last_result_s = 0.0

    def __len__(self) -> int:
        return len(self._decodes)

    @property
    def members(self) -> LockstepMembers:
        """One and the same object while iterations of the same ones follow each other."""
        return self._members

    @property
    def num_ahead(self) -> int:
        """Tokens that each member has computed, or is computing, beyond what its sequence says."""
        return self._members.num_ahead

    def settle(self) -> None:
        """The members' tokens are up to date from now on."""
        self._members.settle()
        self._settled_until = self._step

    def start(self, group: SequenceGroup) -> None:
        """The group runs from now on."""
        self.apart[group.arrival_order] = group

    def stop(self, group: SequenceGroup) -> None:
        """The group runs no more, or by itself. What its sequence and it say is up to date from now on."""
        if self.apart.pop(group.arrival_order, None) is None:
            decode = self._decodes.pop(group.arrival_order, None)
            if decode is not None:
                self._leave(decode)

    def dissolve(self, running: Iterable[SequenceGroup]) -> None:
        """From now on every group is apart. running: all of them, in order of start."""
        self.settle()
        for members in self._running_members():
            for decode in members.decodes:
                members.leave(decode)
        for decode in self._decodes.values():
            self._bring_up_to_date(decode)
        self._members = LockstepMembers()
        self._decodes.clear()
        self._watched.clear()
        self._talkative.clear()
        self._calendar.clear()
        self._looks.clear()
        self.apart = {group.arrival_order: group for group in running}

    def join(self, group: SequenceGroup, sequence: Sequence) -> None:
        """The group becomes a member. All tokens of its only sequence are computed, or being computed, but the last,
        whose id is pending."""
        del self.apart[group.arrival_order]
        self._num_joined += 1
        table = self._blocks.table(sequence.sequence_id)
        decode = LockstepDecode(group, sequence, table, self._num_joined, self._step)
        self._decodes[group.arrival_order] = decode
        self._changing().add(decode)
        self._watched.update(decode.watched_ids)
        if len(group.sequences) > 1 or decode.first.sampling.num_logprobs is not None:
            self._talkative.append(decode)
        self._note([decode])

    def lacking(self) -> list[LockstepDecode]:
        """The members that need a block for their next token. Members whose last token is drawn, or being drawn, become
        apart."""
        due = self._calendar.get(self._step)
        if due is None:
            return []
        lacking = []
        for decode in due:
            if not decode.is_member:
                continue
            if self._num_tokens(decode) >= decode.sequence.max_num_tokens:
                group = decode.group
                del self._decodes[group.arrival_order]
                self._leave(decode)
                self.apart[group.arrival_order] = group
            else:
                lacking.append(decode)
        self._calendar[self._step] = lacking
        return lacking

    def advance(self, draft: PlanDraft) -> None:
        """Each member computes its last token. The caller has made sure of free blocks for all that are `lacking`."""
        step, members, grown = self._step, self._members, self._grow()
        due = self._looks.pop(step, []) + self._talkative
        if self._decodes:
            members.launch()
            iteration = LockstepIteration(step, members, due)
            self._running.append(iteration)
            self._last_number = draft.number
            changes = {members.place_of(each): (each.table_start, each.block_ids) for each in grown}
            due += [each for each in grown if self._num_tokens(each) == each.sequence.max_num_tokens]
            draft.in_lockstep = iteration
            draft.shares_in_lockstep = LockstepShares(members.first, step, changes, members.num_first)
        self._step += 1
        for decode in grown:
            decode.table_start += 1
            decode.block_ids = ()
        self._note(grown)

    def finish(self) -> None:
        """The oldest iteration that runs has ended, whatever came of it."""
        self._running.popleft()

    def take(self, iteration: LockstepIteration, token_ids: tuple[int, ...], now_s: float) -> dict[int, LockstepDecode]:
        """Take in what the iteration, which has just finished, has drawn. token_ids: first its members', then perhaps
        others'. Returns, by place, the decodes whose token the caller must look at: more may follow from it than its
        id, or the decode is a member no more. If there are any, all is settled."""
        members, current = iteration.members, self._members
        mine = token_ids[: len(members)]
        if iteration.step >= self._settled_until:
            current.rows.append(mine)
        else:
            members.write(mine, len(self._running) - current.num_ahead + len(current.rows))
        self._last_result_s = now_s
        by_place = members.left.copy()
        by_place.update((members.place_of(decode), decode) for decode in iteration.due if decode.is_member)
        if not self._watched.keys().isdisjoint(mine):
            watching = zip(members.decodes, mine, strict=True)
            by_place.update((i, decode) for i, (decode, drawn) in enumerate(watching) if drawn in decode.watched_ids)
        if by_place or len(current.rows) >= LONGEST_RUN:
            self.settle()
        return by_place

    def last_drawn(self, decode: LockstepDecode) -> int:
        """The position of the last token of a member that was taken. All is settled."""
        return len(decode.token_ids) - 1 - len(self._running)

    def num_unfilled(self) -> int:
        """Places for tokens in the members' blocks that are not computed."""
        block_size = self._blocks.block_size
        return sum(
            len(decode.table.block_ids) * block_size - len(decode.token_ids) - self.num_ahead + 1
            for decode in self._decodes.values()
        )

    def check_invariants(self, running: Iterable[SequenceGroup]) -> None:
        """Raise AssertionError unless every group is in one place, and every member has room until its turn comes."""
        assert sorted([*self._decodes, *self.apart]) == sorted(group.arrival_order for group in running)
        assert self._members.decodes == list(self._decodes.values())
        turns = {id(decode): step for step, decodes in self._calendar.items() for decode in decodes}
        for decode in self._decodes.values():
            steps = turns[id(decode)] - self._step
            room = len(self._blocks.table(decode.sequence_id).block_ids) * self._blocks.block_size
            assert steps >= 0
            num_tokens = self._num_tokens(decode)
            assert decode.token_ids is decode.sequence.token_ids
            assert decode.first.num_computed_tokens + self._step == num_tokens - 1
            assert num_tokens + steps - 1 <= min(room, decode.sequence.max_num_tokens - 1)

    def _changing(self) -> LockstepMembers:
        """The members, for somebody to join or leave."""
        if self._members.is_launched:
            self.settle()
            self._members = self._members.copy()
        return self._members

    def _leave(self, decode: LockstepDecode) -> None:
        """It is a member no more. Tokens may still be under way, and the request may end before they arrive."""
        self._changing().remove(decode)
        for members in self._running_members():
            members.leave(decode)
        self._watched.subtract(decode.watched_ids)
        self._watched += Counter()  # drops what nobody watches for
        if decode in self._talkative:
            self._talkative.remove(decode)
        self._bring_up_to_date(decode)

    def _bring_up_to_date(self, decode: LockstepDecode) -> None:
        """What its sequence and its group say, once it has left. Its tokens are settled."""
        decode.is_member = False
        sequence, group = decode.sequence, decode.group
        sequence.num_computed_tokens = len(decode.token_ids) - 1
        sequence.last_iteration = max(sequence.last_iteration, self._last_number)
        num_new = sequence.num_known_tokens - decode.num_told
        if num_new > 0:
            group.num_output_tokens += num_new
            group.last_token_s = self._last_result_s

    def _running_members(self) -> Iterable[LockstepMembers]:
        """Those of all iterations that run, each once."""
        return {id(iteration.members): iteration.members for iteration in self._running}.values()

    def _grow(self) -> list[LockstepDecode]:
        """One block for each that is `lacking`."""
        lacking = self._calendar.pop(self._step, [])
        new_blocks = self._blocks.append_each([decode.sequence_id for decode in lacking])
        for decode, block_id in zip(lacking, new_blocks, strict=True):
            decode.block_ids = (block_id,)
        return lacking

    def _note(self, decodes: Iterable[LockstepDecode]) -> None:
        """Enter them in the calendar: under the step at which their tokens exceed their blocks, or are as many as they
        may have; then their last token must be looked at, too. The executor knows their block tables as they are now.
        """
        block_size, step = self._blocks.block_size, self._step
        for decode in decodes:
            table_start = decode.table.changed_from = decode.table_start
            most = min(table_start * block_size + 1, decode.sequence.max_num_tokens)
            due = step + most - self._num_tokens(decode)
            self._calendar.setdefault(due, []).append(decode)
            if most == decode.sequence.max_num_tokens and due > step:
                self._looks.setdefault(due - 1, []).append(decode)

    def _num_tokens(self, decode: LockstepDecode) -> int:
        """Those that are pending, too."""
        return len(decode.token_ids) + self.num_ahead
