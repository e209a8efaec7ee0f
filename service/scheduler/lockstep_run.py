"""Iterations of the same decodes, one behind the other, of which only the drawn ids are kept: touching hundreds of
sequences that have left the processor's caches is what costs, not what is done to them (loadtest/LOG.md).

While a run is open, sequences and groups of its members stay as they were before its first iteration. What the run has
launched and drawn becomes theirs when it is closed, all at once; so whoever looks at one of them closes it first. Block
tables grow in every case, and nothing else of a member changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from service.core.iteration_plan import PENDING_TOKEN_ID
from service.scheduler.lockstep_decode import LockstepDecode

LONGEST_RUN = 32
"""Iterations. The full blocks of a run are offered to the prefix cache behind it; so many of them wait at most."""


class RunningTogether:
    """What all runs of the same members have in common.

    last_step: in this step the first of them draws its last token. request_ids: one and the same object.
    """

    __slots__ = ("is_possible", "last_step", "members", "request_ids", "watched_ids")

    def __init__(self, members: tuple[LockstepDecode, ...], step: int) -> None:
        """Their sequences are up to date before this step."""
        self.members = members
        self.is_possible = not any(map(_wants_more_than_ids, members))
        self.request_ids = tuple([decode.request_id for decode in members])
        self.watched_ids = frozenset[int]().union(*[decode.watched_ids for decode in members])
        self.last_step = step + min([_num_before_last(decode) for decode in members], default=0)


class LockstepRun:
    """Engine thread only. Each of the members decodes one token in each iteration, from step `step` on.

    A token of a run is told by its id alone. So a run takes no token that may be more than that: the last one of a
    choice, one of anybody's `watched_ids`, one with logprobs.
    """

    def __init__(self, together: RunningTogether, step: int) -> None:
        assert together.is_possible
        self.members = together.members
        self.request_ids = together.request_ids
        self.num_launched = 0
        self.is_open = True
        self._watched_ids = together.watched_ids
        self._num_to_take = together.last_step - step
        self._drawn: list[tuple[int, ...]] = []
        self._last_number = 0
        self._last_result_s = 0.0

    def launch(self, number: int) -> None:
        """The iteration of that number is launched as the run's next one."""
        self.num_launched += 1
        self._last_number = number

    def take(self, token_ids: tuple[int, ...], result_s: float) -> bool:
        """What the oldest iteration that was not taken has drawn, one id a member. Closes the run and returns False if
        these tokens must be looked at, and False if the run is closed."""
        if not self.is_open:
            return False
        if len(self._drawn) >= self._num_to_take or not self._watched_ids.isdisjoint(token_ids):
            self.close()
            return False
        self._drawn.append(token_ids)
        self._last_result_s = result_s
        return True

    def close(self) -> None:
        """Sequences and groups are up to date from now on. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        num_launched, num_drawn = self.num_launched, len(self._drawn)
        pending = (PENDING_TOKEN_ID,) * (num_launched - num_drawn)
        drawn: Iterable[tuple[int, ...]] = zip(*self._drawn, strict=True) if num_drawn else repeat(())
        for decode, token_ids in zip(self.members, drawn, strict=False):
            decode.token_ids += token_ids
            decode.token_ids += pending
            sequence, group = decode.sequence, decode.group
            sequence.num_computed_tokens += num_launched
            sequence.last_iteration = self._last_number
            group.num_output_tokens += num_drawn
            if num_drawn:
                group.last_token_s = self._last_result_s


def _wants_more_than_ids(decode: LockstepDecode) -> bool:
    """Whether more than its id is to be told of each of its tokens."""
    return len(decode.group.sequences) > 1 or decode.sampling.num_logprobs is not None


def _num_before_last(decode: LockstepDecode) -> int:
    """Tokens that it will draw before its last one, from the next iteration on."""
    return decode.sequence.max_num_tokens - decode.sequence.num_computed_tokens - 2
