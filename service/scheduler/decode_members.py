"""Who is in the decode batch: what an iteration of it must still know when its result comes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup


class DecodeMembers:
    """Groups in the order in which they joined, the same place in each list. Who joins or leaves does so in a copy, but
    for `left`, so that an iteration which was launched keeps the members that it had.

    numbers: of their joining, rising. left: groups that have left since, by place. detailed: numbers of those whose
    clients are told more of a token than its id. num_by_client: how many are whose.
    """

    __slots__ = ("_rows", "_token_ids", "detailed", "groups", "left", "num_by_client", "numbers", "request_ids")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.groups: list[SequenceGroup] = []
        self.request_ids: list[str] = []
        self.detailed: list[int] = []
        self.num_by_client = Counter[str]()
        self.left: dict[int, SequenceGroup] = {}
        self._token_ids: list[list[int]] = []
        self._rows: list[tuple[int, ...]] = []

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
        """The sequences' tokens are up to date from now on, but for ids that are not drawn yet."""
        if self._rows:
            _exhaust(map(list.extend, self._token_ids, zip(*self._rows, strict=True)))
            self._rows = []

    def write(self, token_ids: tuple[int, ...]) -> None:
        """One id more for each."""
        _exhaust(map(list.append, self._token_ids, token_ids))

    def _copy(self) -> DecodeMembers:
        self.write_kept()
        copy = DecodeMembers()
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
