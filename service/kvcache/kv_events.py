"""What the prefix cache tells of itself, for routers that send a request to the replica that knows its beginning."""

from __future__ import annotations

from typing import Protocol


class KvEvents(Protocol):
    """Called on the engine's thread; neither raises nor waits."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: bytes, salt: str) -> None:
        """An entry may be found from now on. parent: the digest of the entry before it; None for a prefix's first one.
        tokens: its token ids, as C ints."""
        ...

    def removed(self, digest: bytes) -> None:
        """It is not found any more."""
        ...

    def cleared(self) -> None:
        """None is found any more."""
        ...


class NoKvEvents:
    """Nobody is told."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: bytes, salt: str) -> None:
        pass

    def removed(self, digest: bytes) -> None:
        pass

    def cleared(self) -> None:
        pass
