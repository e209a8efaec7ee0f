"""Who decodes in lockstep, as columns. While nobody joins or leaves, an iteration touches none of them; else it writes
one token to each, and touches nothing else of it. Touching hundreds of sequences that have left the processor's caches
is what costs, not what is done to them (loadtest/log/host.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from itertools import repeat
from operator import setitem
from typing import Any

from service.core.iteration_plan import PENDING_TOKEN_ID, ScheduledSequence
from service.scheduler.lockstep_decode import LockstepDecode


class LockstepMembers:
    """Members in the order in which they joined, the same place in each list. Once an iteration of them is launched
    they are the same for good: who joins or leaves does so in a copy.

    first: each member's share of step 0, had it been a member then. num_first: the sum of their computed tokens.
    left: who has left since the launch, by place; what is drawn for them goes nowhere. num_ahead: how many of the last
    launched iterations have no place in the members' tokens yet; rows: what the first of these have drawn.
    """

    __slots__ = (
        "_numbers",
        "_token_ids",
        "decodes",
        "first",
        "is_launched",
        "left",
        "num_ahead",
        "num_by_client",
        "num_first",
        "request_ids",
        "rows",
    )

    def __init__(self) -> None:
        self.decodes: list[LockstepDecode] = []
        self.request_ids: list[str] = []
        self.first: list[ScheduledSequence] = []
        self._token_ids: list[list[int]] = []
        self._numbers: list[int] = []
        self.num_by_client = Counter[str]()
        self.num_first = 0
        self.is_launched = False
        self.left: dict[int, LockstepDecode] = {}
        self.num_ahead = 0
        self.rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self.decodes)

    def copy(self) -> LockstepMembers:
        """Once they are settled."""
        assert not self.num_ahead
        copy = LockstepMembers()
        copy.decodes = self.decodes.copy()
        copy.request_ids = self.request_ids.copy()
        copy.first = self.first.copy()
        copy._token_ids = self._token_ids.copy()
        copy._numbers = self._numbers.copy()
        copy.num_by_client = self.num_by_client.copy()
        copy.num_first = self.num_first
        return copy

    def add(self, decode: LockstepDecode) -> None:
        """It has the last place. `decode.number` is the highest so far."""
        assert not self.is_launched
        self.decodes.append(decode)
        self.request_ids.append(decode.request_id)
        self.first.append(decode.first)
        self._token_ids.append(decode.token_ids)
        self._numbers.append(decode.number)
        self.num_by_client[decode.client] += 1
        self.num_first += decode.first.num_computed_tokens

    def remove(self, decode: LockstepDecode) -> None:
        assert not self.is_launched
        place = self.place_of(decode)
        for column in (self.decodes, self.request_ids, self.first, self._token_ids, self._numbers):
            del column[place]
        self.num_by_client[decode.client] -= 1
        if not self.num_by_client[decode.client]:
            del self.num_by_client[decode.client]
        self.num_first -= decode.first.num_computed_tokens

    def place_of(self, decode: LockstepDecode) -> int:
        """A member's place."""
        place = bisect_left(self._numbers, decode.number)
        assert self.decodes[place] is decode
        return place

    def leave(self, decode: LockstepDecode) -> None:
        """The decode, perhaps a member, leaves while an iteration of them runs."""
        place = bisect_left(self._numbers, decode.number)
        if place < len(self) and self.decodes[place] is decode:
            self.left[place] = decode
            self._token_ids[place] = _Nowhere()

    def launch(self) -> None:
        """Each draws one more token."""
        self.is_launched = True
        self.num_ahead += 1

    def settle(self) -> None:
        """The members' tokens are up to date from now on; those that are still to be drawn are pending."""
        pending = (PENDING_TOKEN_ID,) * (self.num_ahead - len(self.rows))
        if self.rows:
            _do(map(list.extend, self._token_ids, zip(*self.rows, strict=True)))
        if pending:
            _do(map(list.extend, self._token_ids, repeat(pending)))
        self.rows, self.num_ahead = [], 0

    def write(self, token_ids: tuple[int, ...], num_later: int) -> None:
        """What an iteration has drawn that is pending. num_later: iterations of all of them that were launched after it
        and are pending, too."""
        _do(map(setitem, self._token_ids, repeat(-1 - num_later), token_ids))


class LockstepIteration:
    """An iteration, the `step`-th, that is launched. due: members whose tokens must be looked at, whatever they are."""

    __slots__ = ("due", "members", "step")

    def __init__(self, step: int, members: LockstepMembers, due: list[LockstepDecode]) -> None:
        self.step = step
        self.members = members
        self.due = due


class _Nowhere(list[int]):
    """Takes the tokens of who has left."""

    def __setitem__(self, place: Any, token_id: Any) -> None:
        pass


def _do(steps: map[None]) -> None:
    deque(steps, maxlen=0)
