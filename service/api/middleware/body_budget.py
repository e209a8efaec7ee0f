"""How many bytes the bodies of all requests together may hold while they are read and parsed."""

from __future__ import annotations

import asyncio

from service.errors import Overloaded

_RETRY_AFTER_S = 1.0


class BodyBudget:
    """The bytes of all bodies that are being read or parsed. Event-loop thread.

    Bytes count when they arrive, so declaring a large length costs the others nothing. When they do not fit, the
    largest body that is still arriving is evicted, even if it is the one that wants more (as the longest queue of a
    shared buffer is). So small bodies get through whatever large ones do, and a client that stalls many large ones
    loses them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._under_way: dict[BodyShare, None] = {}

    @property
    def num_bytes(self) -> int:
        """Held now."""
        return self._num_bytes

    def share(self) -> BodyShare:
        """A share for one more body, at first empty."""
        share = BodyShare(self)
        self._under_way[share] = None
        return share

    def check_room(self, declared_bytes: int) -> None:
        """Overloaded if a body of this length would be evicted at present."""
        too_much = self._num_bytes + declared_bytes - self._most_bytes
        if too_much > 0 and too_much > sum(
            share.num_bytes for share in self._under_way if share.num_bytes > declared_bytes
        ):
            raise self._overloaded()

    def take(self, share: BodyShare, num_bytes: int) -> None:
        assert share in self._under_way, "what is complete or given back takes no more"
        while self._num_bytes + num_bytes > self._most_bytes:
            largest = max(self._under_way, key=lambda each: each.num_bytes)
            if largest.num_bytes <= share.num_bytes + num_bytes:
                raise self._overloaded()
            largest.evict()
        share.num_bytes += num_bytes
        self._num_bytes += num_bytes

    def finish(self, share: BodyShare) -> None:
        self._under_way.pop(share, None)

    def release(self, share: BodyShare) -> None:
        self.finish(share)
        self._num_bytes -= share.num_bytes
        share.num_bytes = 0

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"The bodies that are being read have {self._num_bytes} bytes; the limit is {self._most_bytes}. "
            "Try again later.",
            retry_after_s=_RETRY_AFTER_S,
        )


class BodyShare:
    """The bytes of the budget that one body holds. `release` ends it; idempotent.

    is_evicted: it was evicted for other bodies while it was arriving; what has arrived of it must be dropped.
    """

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._waiting: asyncio.Timeout | None = None
        self.num_bytes = 0
        self.is_evicted = False

    def wait_until(self, when_s: float) -> asyncio.Timeout:
        """Like `asyncio.timeout_at`, for waiting for more of the body; it also expires when the share is evicted."""
        self._waiting = asyncio.timeout_at(0.0 if self.is_evicted else when_s)
        return self._waiting

    def take(self, num_bytes: int) -> None:
        """`num_bytes` have arrived, and the wait is over. Overloaded if this body is evicted."""
        self._waiting = None
        self._budget.take(self, num_bytes)

    def finish(self) -> None:
        """The body is complete and cannot be evicted any more; its bytes are released when it is parsed, which is
        soon."""
        self._budget.finish(self)

    def evict(self) -> None:
        self.is_evicted = True
        if self._waiting is not None:
            self._waiting.reschedule(0.0)
        self.release()

    def release(self) -> None:
        """The bytes are no longer held."""
        self._waiting = None
        self._budget.release(self)
