from __future__ import annotations

from pathlib import Path

from loadtest.determinism import Comparison, Sizes, compare_on_servers
from tests.e2e.server_process import write_dummy_folder


def test_servers_share_the_requests_and_none_differs(tmp_path: Path) -> None:
    folder = str(write_dummy_folder(tmp_path / "dummy"))
    flags = [folder, "--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "8MiB", "--deterministic"]
    found = compare_on_servers(2, flags, num_requests=9, at_once=4, sizes=Sizes(50, 60, 3))
    assert found == Comparison(9, found.left, 9 - found.left, 0, found.preemptions)
    assert found.left < 9
