"""The persistent decode batch: most iterations are little else, and deciding one of these costs next to nothing.

A decoding request with one choice computes one token per iteration, and nothing else about it changes, except for its
block table once in block_size iterations. Such requests are kept as columns of one table from iteration to iteration,
so deciding is a few operations on whole columns. All other running groups are `unbatched` and looked at one by one:
prompts, several choices, beams, groups with blocks in transfer to or from the host, and groups whose drawn ids the host
must know. If every group is unbatched, the decisions are the same, only slower: that is the plain twin.

While a group is in the batch, its progress is in the columns; its Sequence and SequenceGroup lag behind. Drawn ids are
written to the sequences when a group joins or leaves, when a token needs a look (a stop, for example), and every
LONGEST_RUN iterations, since touching hundreds of sequences outside the CPU's caches is costly (loadtest/LOG.md).
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
"""For how many iterations of the same members drawn ids are kept before they are written to the sequences."""

SEQUENCE_ID, ROW, SEED, LAST, NUM_TOLD, NUM_NEW, END, ROOM = range(8)
"""The columns. row, seed: as in ScheduledDecodes. last: position of the last token that the sequence may have.
num_told: number of its tokens when it joined; its group's own counts end there. num_new: tokens to compute next.
end: the position after these, which is that of the token to be drawn. room: tokens that its blocks can hold."""


class DecodeBatch:
    """The running groups of one lane (lanes.py): each is either in the batch or in `unbatched` (group by arrival order,
    inserted in order of start). Engine thread only. versions: numbers for `ScheduledDecodes.version`. history: told of
    the batch's tokens when they are written to the sequences."""

    def __init__(self, blocks: BlockManager, versions: Iterator[int], history: History) -> None:
        self.unbatched: dict[int, SequenceGroup] = {}
        self._blocks = blocks
        self._history = history
        self._columns: Int64Array = np.empty((8, 0), np.int64)
        self._members = DecodeMembers(history)
        self._versions = versions
        self._version = 0
        self._numbers: dict[int, int] = {}  # joining number of each member, by arrival order
        self._tables: dict[int, BlockTable] = {}  # block table of each member, by sequence id
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
        """Whether the group is in this lane, batched or unbatched."""
        return group in self or group.arrival_order in self.unbatched

    @property
    def num_seqs(self) -> int:
        """Live sequences of all groups in this lane."""
        return len(self) + sum(len(group.live) for group in self.unbatched.values())

    @property
    def has_only_drawn_out(self) -> bool:
        """Whether no unbatched group computes anything any more."""
        return all(sequence.is_drawn_out for group in self.unbatched.values() for sequence in group.live)

    def start(self, group: SequenceGroup) -> None:
        """The group starts to run, unbatched."""
        self.unbatched[group.arrival_order] = group

    def take_over(self, group: SequenceGroup, running: Iterable[SequenceGroup]) -> None:
        """Take over a group that already runs in another lane. running: all running groups, in order of start."""
        here = {*self.unbatched, group.arrival_order}
        self.unbatched = {each.arrival_order: each for each in running if each.arrival_order in here}

    def stop(self, group: SequenceGroup) -> None:
        """The group stops running. From now on the token counts of it and its sequence are up to date."""
        if self.unbatched.pop(group.arrival_order, None) is None and group in self:
            self._leave(group)

    def dissolve(self, running: Iterable[SequenceGroup]) -> None:
        """Move every group out of the batch. running: all groups of this lane, in order of start."""
        self.part_with(self._members.groups)
        self.unbatched = {group.arrival_order: group for group in running}

    def part_with(self, groups: Iterable[SequenceGroup]) -> None:
        """Move these groups out of the batch: they are unbatched then."""
        for group in groups:
            if group in self:
                self._leave(group)
                self.unbatched[group.arrival_order] = group

    def join(self, groups: list[SequenceGroup]) -> None:
        """Move unbatched groups into the batch. Each must have one live sequence, of which every token but the last is
        computed or being computed, and the last one's id is pending."""
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
        """Which decodes need blocks for their next tokens: the place of each, repeated once per block needed,
        ascending. With a sliding window, blocks that these decodes no longer see are freed first."""
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
        """Plan iteration `number`: every member computes its next tokens. Returns the members and their columns; None
        if the batch is empty. shortage: what `shortage` returned; the caller has checked that there are so many blocks.
        Groups that draw their last token in this iteration leave the batch."""
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
        if len(ended):
            self.part_with([members.groups[place] for place in ended.tolist()])
        return members, decodes

    def finish(self) -> None:
        """The oldest iteration in flight has ended, successfully or not."""
        self._launched.popleft()

    def take(self, members: DecodeMembers, token_ids: tuple[int, ...], now_s: float) -> dict[int, SequenceGroup]:
        """Record what a just finished iteration drew: one id per member. Returns, by place, the groups whose id the
        caller must look at: it may be a stop token, the client wants more than the id, or the group has left the batch.
        If any are returned, the tokens of all sequences in the batch are up to date."""
        if members is not self._members:
            members.write(token_ids)
        elif members.keep(token_ids) >= LONGEST_RUN:
            members.write_kept()
        self._last_result_s = now_s
        looked_at = members.left.copy()
        for group in looked_at.values():
            if not group.live:  # it ended before this draw, which is dropped
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
        """Bring the token ids of all sequences in the batch up to date, except for ids that are not drawn yet."""
        self._members.write_kept()

    def num_uncounted(self, group: SequenceGroup) -> int:
        """How many drawn tokens the group's own counts lack because it is in the batch; 0 if it is not. Also brings its
        sequence's token ids up to date."""
        number = self._numbers.get(group.arrival_order)
        if number is None:
            return 0
        self.write_tokens()
        place = self._members.place_of(number)
        assert place is not None
        return max(0, group.live[0].num_known_tokens - int(self._columns[NUM_TOLD, place]))

    def num_unfilled(self) -> int:
        """Token slots in the batch's blocks that no computed token fills yet."""
        self._drop_left()
        columns = self._columns
        return int((columns[ROOM] - columns[END] + columns[NUM_NEW]).sum())

    def _leave(self, group: SequenceGroup) -> None:
        """Take the group out of the batch. Iterations in flight may still draw tokens for it, even once it ended."""
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
        table.changed_from = len(table.block_ids)  # the plans have sent every block so far
        num_new = sequence.num_known_tokens - columns[NUM_TOLD]
        if num_new > 0:
            group.num_output_tokens += num_new
            group.last_token_s = self._last_result_s
        sequence.num_computed_tokens = num_computed = columns[END] - columns[NUM_NEW]
        sequence.token_ids += [PENDING_TOKEN_ID] * (num_computed + 1 - len(sequence.token_ids))
        sequence.last_iteration = max(sequence.last_iteration, self._last_number)

    def _drop_left(self) -> None:
        """Remove the groups that have left from the columns."""
        left = self._members.left
        if left:
            stays = np.ones(len(self._members), np.bool_)
            stays[list(left)] = False
            self._columns = self._columns.compress(stays, axis=1)
            self._members = self._members.remaining()
            self._version = next(self._versions)

    def _grow(self, places: Int64Array) -> GrownTables:
        """Append a block for each entry of `places`; with G layer groups, a decode has G entries per unit."""
        columns, block_size, num_groups = self._columns, self._blocks.block_size, self._blocks.num_groups
        sequence_ids = columns[SEQUENCE_ID, places].tolist()
        block_ids = self._blocks.supply.append_each([self._tables[sequence_id] for sequence_id in sequence_ids])
        nth = np.arange(len(places)) - places.searchsorted(places)  # 0, 1, ... within each decode's entries
        starts = columns[ROOM, places] // block_size * num_groups + nth
        grown = GrownTables(places, starts, np.array(block_ids, np.int64))
        np.add.at(columns[ROOM], places[::num_groups], block_size)
        return grown


def _watched_ids(group: SequenceGroup) -> frozenset[int]:
    """Ids after which the group does not simply go on: stop tokens and a failed draw."""
    return group.request.sampling.stop_token_ids | {INVALID_TOKEN_ID}


class DecodeMembers:
    """The members of the decode batch, in the order in which they joined; lists are aligned by place. An iteration in
    flight keeps the object that it was launched with: joining and leaving make a copy, but `left` changes in place.

    numbers: joining numbers, ascending. left: groups that have left since, by place. detailed: joining numbers of
    groups whose clients get more than the id of a token. num_by_client: how many members each client has.
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
        self.num_by_client: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def with_more(self, groups: Sequence[SequenceGroup], first_number: int) -> DecodeMembers:
        """A copy with `groups` appended, which get the joining numbers from `first_number` on. Kept ids are written."""
        copy = self._copy()
        copy.numbers += range(first_number, first_number + len(groups))
        copy.groups += groups
        copy.request_ids += [group.request.request_id for group in groups]
        copy._token_ids += [group.live[0].token_ids for group in groups]
        for group in groups:
            client = group.request.client
            copy.num_by_client[client] = copy.num_by_client.get(client, 0) + 1
        copy.detailed += [number for number, group in enumerate(groups, first_number) if _is_detailed(group)]
        return copy

    def remaining(self) -> DecodeMembers:
        """A copy without the groups that have left."""
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
        """Place of the group with this joining number; None if it is no member."""
        place = bisect_left(self.numbers, number)
        return place if place < len(self) and self.numbers[place] == number else None

    def leave(self, number: int) -> None:
        """The group, if it is a member, leaves: ids drawn in this batch are no longer written to its sequence."""
        place = self.place_of(number)
        if place is not None:
            self.left[place] = self.groups[place]
            self._token_ids[place] = []

    def keep(self, token_ids: tuple[int, ...]) -> int:
        """Keep one id per member, to be written later. Returns how many iterations' ids are kept."""
        self._rows.append(token_ids)
        return len(self._rows)

    def write_kept(self) -> None:
        """Write all kept ids to the sequences, and report their number to the history."""
        if self._rows:
            self._count(len(self._rows))
            _exhaust(map(list.extend, self._token_ids, zip(*self._rows, strict=True)))
            self._rows = []

    def write(self, token_ids: tuple[int, ...]) -> None:
        """Write one id per member to the sequences at once."""
        self._count(1)
        _exhaust(map(list.append, self._token_ids, token_ids))

    def _count(self, num_tokens: int) -> None:
        """Report `num_tokens` tokens of each member to the history."""
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
