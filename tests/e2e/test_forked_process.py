"""A forked process begins and ends as an executed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.forked_process import ROOT, ForkServer, fork_server
from tests.e2e.server_process import without_settings
from tests.e2e.spare_processes import num_ranks_elsewhere


def environment() -> dict[str, str]:
    return dict(sorted(without_settings(os.environ).items()))


@pytest.fixture
def server() -> ForkServer:
    return fork_server(environment())


@pytest.mark.parametrize("how", ["0", "3", "return", "sentence", "raise", "sigterm", "rank"])
def test_it_begins_and_ends_as_an_executed_one(server: ForkServer, how: str):
    command = [
        "tests.e2e.shown_process",
        how,
        "--a",
        "b c",
        *(["--tensor-parallel-size", "2"] if how == "rank" else []),
    ]
    forked = server.start(command)
    executed = subprocess.Popen(
        [sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
    )
    (begun, end), (same, same_end) = ended(forked), ended(executed)
    if how == "rank":
        assert begun.pop("open") == [*same.pop("open"), "3"], "a line to its spare"
    assert begun == same
    assert end.splitlines()[-1:] == same_end.splitlines()[-1:], "of a rank: how it began"
    assert forked.returncode == executed.returncode


def ended(process) -> tuple[dict[str, object], str]:
    """What it told of its beginning, and what it wrote at last."""
    _, log = process.communicate(timeout=60)
    process.stderr.close()
    begun, _, rest = log.partition("\n")
    return json.loads(begun), rest


def test_several_run_at_once_and_one_that_is_killed_is_known_at_once(server: ForkServer):
    command = ["service", "serve", "--port", "0", "--device", "cpu", "--load-format", "dummy"]
    first, second = server.start(command), server.start(command)
    assert first.pid != second.pid
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0)
    assert first.poll() is None
    first.kill()
    assert first.wait(10) == -9
    first.kill()  # nobody's any more
    assert second.poll() is None
    second.kill()
    assert second.communicate(10)[0] is None
    assert second.returncode == -9
    for process in first, second:
        process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ("serve model --port 0", 0),
        ("serve --tensor-parallel-size 2", 1),
        ("serve --pipeline-parallel-size 2 --tensor-parallel-size 2 model", 3),
        ("serve --pipeline-parallel-size 4 --nnodes 2 --node-rank 0", 1),
    ],
)
def test_a_server_has_spares_for_its_hosts_other_ranks(arguments: str, number: int):
    assert num_ranks_elsewhere(arguments.split()) == number


def test_who_was_forked_from_this_process_has_the_same_server_with_data_of_its_own(server: ForkServer, tmp_path: Path):
    told = tmp_path / "told"
    child = os.fork()
    if not child:
        os.environ["XDG_DATA_HOME"] = "its own"
        asked = fork_server(environment()) is server
        begun, _ = ended(server.start(["tests.e2e.shown_process", "return"]))
        server.close()
        told.write_text(json.dumps([asked, begun["environment"]["XDG_DATA_HOME"]]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert json.loads(told.read_text()) == [True, "its own"]
    assert ended(server.start(["tests.e2e.shown_process", "return"])), "it is not the child's to close"


def test_the_server_ends_with_who_asks():
    server = ForkServer(environment())
    began_s = time.monotonic()
    server.close()
    assert time.monotonic() - began_s < 60
