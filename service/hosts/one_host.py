"""The other hosts of a model whose ranks are all on this one: there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.distributed.adapter_lines import AdapterLines, AdapterSharing
from service.distributed.control_ring import MessageWriter
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import RankStatuses
from service.distributed.rank_task import MeetingPlace, RankTask


class OtherHosts(Protocol):
    """The other hosts, as rank 0 sees them; service/hosts/head.py says what each method promises."""

    def listen(self, statuses: RankStatuses, loss: RankLoss, on_leave: Callable[[str], None]) -> None: ...

    def meet(self, task: RankTask, open_store: Callable[[], int]) -> MeetingPlace | None: ...

    def wait_until_ready(self) -> None: ...

    def writer(self, local: MessageWriter) -> MessageWriter: ...

    def adapters(self, local: AdapterLines) -> AdapterSharing: ...

    def lose(self, reason: str) -> None: ...

    def close(self) -> None: ...


class OneHost:
    def listen(self, statuses: RankStatuses, loss: RankLoss, on_leave: Callable[[str], None]) -> None:
        pass

    def meet(self, task: RankTask, open_store: Callable[[], int]) -> None:
        """None: the ranks meet in the file that they inherit."""

    def wait_until_ready(self) -> None:
        pass

    def writer(self, local: MessageWriter) -> MessageWriter:
        return local

    def adapters(self, local: AdapterLines) -> AdapterSharing:
        return local

    def lose(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass
