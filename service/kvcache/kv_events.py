"""Events of the prefix cache, for routers that send a request to the replica which has its prefix cached."""

from __future__ import annotations

from typing import Protocol


class KvEvents(Protocol):
    """Called on the engine's thread; must not raise or block."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: bytes, salt: str) -> None:
        """An entry can be found from now on. parent: digest of the preceding entry; None for the first of a prefix.
        tokens: its token ids, as C ints."""
        ...

    def removed(self, digest: bytes) -> None:
        """The entry cannot be found any more."""
        ...

    def cleared(self) -> None:
        """No entry can be found any more."""
        ...


class NoKvEvents:
    """Null object: events are dropped."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: bytes, salt: str) -> None:
        pass

    def removed(self, digest: bytes) -> None:
        pass

    def cleared(self) -> None:
        pass
