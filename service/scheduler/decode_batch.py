"""The persistent decode batch: most iterations consist of little else, and to decide one costs next to nothing.

A running request whose only choice decodes computes one token in every iteration, and nothing else about it changes
but, once in block_size iterations, its block table. So such requests stand in one table of columns from one iteration
to the next, and an iteration is a few operations on whole columns. All other running groups are `unbatched`, and each
is looked at in every iteration: prompts, several choices, beams, groups whose blocks are being copied to or from the
host, and groups whose drawn ids the host must know. With every group unbatched the decisions are the same, only slower:
that is the plain twin.

While a group is in the batch, the columns say how far it is; its sequence and group lag behind. Drawn ids are written
to the sequences' tokens when somebody joins or leaves, when one of them must be looked at, and every LONGEST_RUN
iterations: to touch hundreds of sequences that have left the processor's caches is what costs (loadtest/LOG.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from service.core.iteration import INVALID_TOKEN_ID, NOTHING_GROWN, GrownTables, Int64Array, ScheduledDecodes
from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_table import BlockTable
from service.scheduler.history import History

LONGEST_RUN = 32
"""Iterations of the same members whose drawn ids are kept as they came, until the sequences' tokens get them."""

SEQUENCE_ID, ROW, SEED, LAST, NUM_TOLD, NUM_NEW, END, ROOM = range(8)
"""The columns. row, seed: as in ScheduledDecodes. last: position of the last token that the sequence may have.
num_told: its tokens when it joined, which its group counts without the batch. num_new: tokens to compute next.
end: position behind them, of the token that it draws. room: tokens that its blocks hold."""


class DecodeBatch:
    """Engine thread only. Every running group of its lane (lanes.py) is either in the batch or `unbatched` (keyed by
    order of arrival, in order of start). versions: those that its decodes will have. history: is told of the batch's
    tokens when they are written to the sequences."""

    def __init__(self, blocks: BlockManager, versions: Iterator[int], history: History) -> None:
        self.unbatched: dict[int, SequenceGroup] = {}
        self._blocks = blocks
        self._history = history
        self._columns: Int64Array = np.empty((8, 0), np.int64)
        self._members = DecodeMembers(history)
        self._versions = versions
        self._version = 0
        self._numbers: dict[int, int] = {}  # by order of arrival: the members
        self._tables: dict[int, BlockTable] = {}  # by sequence id: theirs
        self._num_joined = 0
        self._watched_ids = Counter[int]()
        self._launched: deque[DecodeMembers] = deque()
        self._last_number = 0
        self._last_result_s = 0.0

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group.arrival_order in self._numbers

    def holds(self, group: SequenceGroup) -> bool:
        """Whether the group is here, in the batch or unbatched."""
        return group in self or group.arrival_order in self.unbatched

    @property
    def num_seqs(self) -> int:
        """Live sequences of all groups that are here."""
        return len(self) + sum(len(group.live) for group in self.unbatched.values())

    def start(self, group: SequenceGroup) -> None:
        """The group runs from now on."""
        self.unbatched[group.arrival_order] = group

    def take_over(self, group: SequenceGroup, running: Iterable[SequenceGroup]) -> None:
        """The group, which runs already, is here from now on. running: all of them, in order of start."""
        here = {*self.unbatched, group.arrival_order}
        self.unbatched = {each.arrival_order: each for each in running if each.arrival_order in here}

    def stop(self, group: SequenceGroup) -> None:
        """The group runs no more. What its sequence and it say is up to date from now on."""
        if self.unbatched.pop(group.arrival_order, None) is None and group in self:
            self._leave(group)

    def dissolve(self, running: Iterable[SequenceGroup]) -> None:
        """From now on every group is unbatched. running: all of them, in order of start."""
        for group in self._members.groups:
            if group in self:
                self._leave(group)
        self.unbatched = {group.arrival_order: group for group in running}

    def part_with(self, groups: Iterable[SequenceGroup]) -> None:
        """From now on these are unbatched."""
        for group in groups:
            if group in self:
                self._leave(group)
                self.unbatched[group.arrival_order] = group

    def join(self, groups: list[SequenceGroup]) -> None:
        """Of each group's one live sequence all tokens are computed, or being computed, but the last, whose id is
        pending."""
        if not groups:
            return
        self._drop_left()
        first = self._num_joined
        self._num_joined += len(groups)
        columns = []
        for number, group in enumerate(groups, first):
            sequence = group.live[0]
            num_tokens, table = len(sequence.token_ids), self._blocks.table(sequence.sequence_id)
            columns.append((
                sequence.sequence_id, table.row, sequence.draw.seed, sequence.max_num_tokens - 1,
                num_tokens, 1, num_tokens, self._blocks.num_tokens_in(len(table.block_ids)),
            ))  # fmt: skip
            del self.unbatched[group.arrival_order]
            self._tables[sequence.sequence_id] = table
            self._numbers[group.arrival_order] = number
            self._watched_ids.update(_watched_ids(group))
        self._members = self._members.with_more(groups, first)
        self._columns = np.concatenate((self._columns, np.array(columns, np.int64).T), axis=1)
        self._version = next(self._versions)

    def shortage(self) -> Int64Array:
        """Places of the decodes that need blocks for their next tokens, as often as it needs blocks, side by side. What
        they no longer see through a window they have given back first."""
        self._drop_left()
        end, room = self._columns[END], self._columns[ROOM]
        places: Int64Array = (end > room).nonzero()[0]
        if not len(places):
            return places
        if self._blocks.window is not None:
            columns = self._columns[:, places]
            positions = (columns[END] - columns[NUM_NEW]).tolist()
            for sequence_id, position in zip(columns[SEQUENCE_ID].tolist(), positions, strict=True):
                self._blocks.forget_unseen(sequence_id, position)
        num_units = -((room[places] - end[places]) // self._blocks.block_size)
        return places.repeat(num_units * self._blocks.num_groups)

    def advance(self, number: int, shortage: Int64Array) -> tuple[DecodeMembers, ScheduledDecodes] | None:
        """Iteration `number` computes the next tokens of all its members, which are returned; None if there are none.
        shortage: as it is now; enough blocks are free for it. Groups whose last token is drawn now leave."""
        if not self._numbers:
            return None
        columns, members = self._columns, self._members
        num_new, end = columns[NUM_NEW].copy(), columns[END]
        grown = self._grow(shortage) if len(shortage) else NOTHING_GROWN
        decodes = ScheduledDecodes(
            self._version,
            columns[SEQUENCE_ID],
            columns[ROW],
            columns[SEED],
            end - num_new,
            num_new,
            int(num_new.sum()),
            grown,
        )
        self._launched.append(members)
        self._last_number = number
        ended = (end >= columns[LAST]).nonzero()[0]
        end += num_new
        for place in ended.tolist():
            group = members.groups[place]
            self._leave(group)
            self.unbatched[group.arrival_order] = group
        return members, decodes

    def finish(self) -> None:
        """The oldest iteration that runs has ended, whatever came of it."""
        self._launched.popleft()

    def take(self, members: DecodeMembers, token_ids: tuple[int, ...], now_s: float) -> dict[int, SequenceGroup]:
        """Take in what an iteration of these members, which has just finished, has drawn: one id for each. Returns by
        place the groups whose id the caller must look at, because more may follow from it, or they are in the batch no
        more. The tokens of all that are in it are up to date then."""
        if members is not self._members:
            members.write(token_ids)
        elif members.keep(token_ids) >= LONGEST_RUN:
            members.write_kept()
        self._last_result_s = now_s
        looked_at = members.left.copy()
        for group in looked_at.values():
            if not group.live:  # what it drew since it ended is dropped
                self._history.decoded(group.request.client, -1)
        for number in members.detailed:
            place = members.place_of(number)
            assert place is not None
            looked_at[place] = members.groups[place]
        if not self._watched_ids.keys().isdisjoint(token_ids):
            of_each = enumerate(zip(members.groups, token_ids, strict=True))
            looked_at.update((place, group) for place, (group, drawn) in of_each if drawn in _watched_ids(group))
        if looked_at:
            self.write_tokens()
        return looked_at

    def write_tokens(self) -> None:
        """The tokens of all sequences in the batch are up to date from now on, but for ids that are not drawn yet."""
        self._members.write_kept()

    def num_uncounted(self, group: SequenceGroup) -> int:
        """Tokens of the group that are drawn and that it does not count, because it is in the batch. Its sequence's
        tokens are up to date from now on."""
        number = self._numbers.get(group.arrival_order)
        if number is None:
            return 0
        self.write_tokens()
        place = self._members.place_of(number)
        assert place is not None
        return max(0, group.live[0].num_known_tokens - int(self._columns[NUM_TOLD, place]))

    def num_unfilled(self) -> int:
        """Places for tokens in the batch's blocks that are not computed."""
        self._drop_left()
        columns = self._columns
        return int((columns[ROOM] - columns[END] + columns[NUM_NEW]).sum())

    def check_invariants(self, running: Iterable[SequenceGroup]) -> None:
        """Raise AssertionError unless every group is in one place, and the columns say what its table says."""
        assert sorted([*self._numbers, *self.unbatched]) == sorted(group.arrival_order for group in running)
        assert len(self._tables) == len(self._numbers)
        self._drop_left()
        self.write_tokens()
        assert [group.arrival_order for group in self._members.groups] == list(self._numbers)
        for group, column in zip(self._members.groups, self._columns.T.tolist(), strict=True):
            (sequence,) = group.live
            table = self._tables[sequence.sequence_id]
            assert table is self._blocks.table(sequence.sequence_id)
            assert (column[SEQUENCE_ID], column[ROW]) == (sequence.sequence_id, table.row)
            num_computed = column[END] - column[NUM_NEW]
            assert column[ROOM] == self._blocks.num_tokens_in(len(table.block_ids))
            assert num_computed <= column[ROOM]
            assert num_computed < column[LAST] == sequence.max_num_tokens - 1
            assert len(sequence.token_ids) <= num_computed + 1

    def _leave(self, group: SequenceGroup) -> None:
        """It is in the batch no more. Tokens may still be under way, and the request may end before they arrive."""
        number = self._numbers.pop(group.arrival_order)
        place = self._members.place_of(number)
        assert place is not None
        self._members.write_kept()
        self._bring_up_to_date(group, self._columns[:, place].tolist())
        self._members.leave(number)
        for members in self._launched:
            members.leave(number)
        for token_id in _watched_ids(group):
            self._watched_ids[token_id] -= 1
            if not self._watched_ids[token_id]:
                del self._watched_ids[token_id]

    def _bring_up_to_date(self, group: SequenceGroup, columns: list[int]) -> None:
        sequence = group.live[0]
        table = self._tables.pop(sequence.sequence_id)
        table.changed_from = len(table.block_ids)  # the plans have told of all
        num_new = sequence.num_known_tokens - columns[NUM_TOLD]
        if num_new > 0:
            group.num_output_tokens += num_new
            group.last_token_s = self._last_result_s
        sequence.num_computed_tokens = num_computed = columns[END] - columns[NUM_NEW]
        sequence.token_ids += [PENDING_TOKEN_ID] * (num_computed + 1 - len(sequence.token_ids))
        sequence.last_iteration = max(sequence.last_iteration, self._last_number)

    def _drop_left(self) -> None:
        """Who has left is in the columns no more."""
        left = self._members.left
        if left:
            stays = np.ones(len(self._members), np.bool_)
            stays[list(left)] = False
            self._columns = self._columns.compress(stays, axis=1)
            self._members = self._members.remaining()
            self._version = next(self._versions)

    def _grow(self, places: Int64Array) -> GrownTables:
        """One block more for the decode at each place; with several groups, one for each of them."""
        columns, block_size, num_groups = self._columns, self._blocks.block_size, self._blocks.num_groups
        sequence_ids = columns[SEQUENCE_ID, places].tolist()
        block_ids = self._blocks.supply.append_each([self._tables[sequence_id] for sequence_id in sequence_ids])
        nth = np.arange(len(places)) - places.searchsorted(places)  # of the decode's
        starts = columns[ROOM, places] // block_size * num_groups + nth
        grown = GrownTables(places, starts, np.array(block_ids, np.int64))
        np.add.at(columns[ROOM], places[::num_groups], block_size)
        return grown


def _watched_ids(group: SequenceGroup) -> frozenset[int]:
    """Ids from which more follows than that the group goes on: a stop, or a failed draw."""
    return group.request.sampling.stop_token_ids | {INVALID_TOKEN_ID}


class DecodeMembers:
    """Who is in the batch: what an iteration of it must still know when its result comes. Groups in the order in which
    they joined, the same place in each list. Who joins or leaves does so in a copy, but
    for `left`, so that an iteration which was launched keeps the members that it had.

    numbers: of their joining, rising. left: groups that have left since, by place. detailed: numbers of those whose
    clients are told more of a token than its id. num_by_client: how many are whose.
    """

    __slots__ = (
        "_history", "_rows", "_token_ids", "detailed", "groups", "left", "num_by_client", "numbers", "request_ids",
    )  # fmt: skip

    def __init__(self, history: History) -> None:
        self.numbers: list[int] = []
        self.groups: list[SequenceGroup] = []
        self.request_ids: list[str] = []
        self.detailed: list[int] = []
        self.left: dict[int, SequenceGroup] = {}
        self._token_ids: list[list[int]] = []
        self._rows: list[tuple[int, ...]] = []
        self._history = history
        self.num_by_client = Counter[str]()

    def __len__(self) -> int:
        return len(self.groups)

    def with_more(self, groups: Sequence[SequenceGroup], first_number: int) -> DecodeMembers:
        """These, and behind them `groups`, numbered from `first_number` on. What was drawn for them is written."""
        copy = self._copy()
        copy.numbers += range(first_number, first_number + len(groups))
        copy.groups += groups
        copy.request_ids += [group.request.request_id for group in groups]
        copy._token_ids += [group.live[0].token_ids for group in groups]
        copy.num_by_client.update(group.request.client for group in groups)
        copy.detailed += [number for number, group in enumerate(groups, first_number) if _is_detailed(group)]
        return copy

    def remaining(self) -> DecodeMembers:
        """Without those that have left."""
        copy = self._copy()
        for place in sorted(self.left, reverse=True):
            number, client = self.numbers[place], self.left[place].request.client
            if number in copy.detailed:
                copy.detailed.remove(number)
            copy.num_by_client[client] -= 1
            if not copy.num_by_client[client]:
                del copy.num_by_client[client]
            for column in (copy.numbers, copy.groups, copy.request_ids, copy._token_ids):
                del column[place]
        return copy

    def place_of(self, number: int) -> int | None:
        """Of the group that joined as the `number`-th; None if it is not here."""
        place = bisect_left(self.numbers, number)
        return place if place < len(self) and self.numbers[place] == number else None

    def leave(self, number: int) -> None:
        """The group, perhaps a member, leaves: its sequence gets no more ids from here."""
        place = self.place_of(number)
        if place is not None:
            self.left[place] = self.groups[place]
            self._token_ids[place] = []

    def keep(self, token_ids: tuple[int, ...]) -> int:
        """One id more for each, to be written later. Returns how many are kept."""
        self._rows.append(token_ids)
        return len(self._rows)

    def write_kept(self) -> None:
        """The sequences' tokens are up to date from now on, but for ids that are not drawn yet; so is the history."""
        if self._rows:
            self._count(len(self._rows))
            _exhaust(map(list.extend, self._token_ids, zip(*self._rows, strict=True)))
            self._rows = []

    def write(self, token_ids: tuple[int, ...]) -> None:
        """One id more for each."""
        self._count(1)
        _exhaust(map(list.append, self._token_ids, token_ids))

    def _count(self, num_tokens: int) -> None:
        """So many of each."""
        for client, num_members in self.num_by_client.items():
            self._history.decoded(client, num_members * num_tokens)

    def _copy(self) -> DecodeMembers:
        self.write_kept()
        copy = DecodeMembers(self._history)
        copy.numbers = self.numbers.copy()
        copy.groups = self.groups.copy()
        copy.request_ids = self.request_ids.copy()
        copy.detailed = self.detailed.copy()
        copy.num_by_client = self.num_by_client.copy()
        copy._token_ids = self._token_ids.copy()
        return copy


def _is_detailed(group: SequenceGroup) -> bool:
    return len(group.sequences) > 1 or group.request.sampling.num_logprobs is not None


def _exhaust(steps: map[None]) -> None:
    deque(steps, maxlen=0)
