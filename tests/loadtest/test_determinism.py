from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest

from loadtest import determinism
from loadtest.determinism import Comparison, Sizes, compare_on_servers
from tests.e2e.server_process import write_dummy_folder


class Threads(ThreadPoolExecutor):
    """In place of a process each, which would import all again: they get what a process would get."""

    def __init__(self, number: int, context: BaseContext) -> None:
        super().__init__(number)

    def map(self, call: Callable[..., Any], each: Iterable[Any]) -> Iterator[Any]:
        return super().map(pickle.loads(pickle.dumps(call)), each)


@pytest.mark.usefixtures("forked_servers")
def test_servers_share_the_requests_and_none_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "ProcessPoolExecutor", Threads)
    folder = str(write_dummy_folder(tmp_path / "dummy"))
    flags = [folder, "--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "8MiB", "--deterministic"]
    found = compare_on_servers(2, flags, range(20, 29), at_once=4, sizes=Sizes(50, 60, 3))
    assert found == Comparison(9, found.left, 9 - found.left, 0, found.preemptions)
    assert found.left < 9
