from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.config import CacheConfig, ModelSource
from service.core.iteration import IterationPlan
from service.distributed.control_ring import MessageKind
from service.distributed.plan_codec import PlanEncoder
from service.distributed.rank_processes import RankProcesses
from service.distributed.rank_status import Fact
from service.distributed.rank_task import RankFault, RankReady, RankTask

TASK = RankTask(
    ModelSource("m", None, None, None, "dummy", "float32", "cpu", None, 0),
    Path("nowhere"),
    CacheConfig(16, 0.9, None),
    4,
    64,
    False,
    "info",
    "json",
)


def worker(behaviour: str) -> tuple[str, ...]:
    return ("-m", "tests.distributed.fake_worker", behaviour)


WORKS = worker("works")


def comes_true(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    """Not so much as a zombie is left that nobody waits for."""
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ends between open and read
        return False


def stop(pid: int) -> None:
    """As a debugger does: none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    assert comes_true(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text())


def started(num_ranks: int, behaviour: str = "works") -> RankProcesses:
    processes = RankProcesses(num_ranks, worker(behaviour))
    processes.tell(TASK)
    return processes


def test_ranks_are_told_load_follow_and_end_with_their_lifelines():
    processes = started(3)
    try:
        assert [processes.heard(rank, 30.0) for rank in (1, 2)] == [RankReady(), RankReady()]
        assert processes.heard(1) is None
        encoder = PlanEncoder()
        for _ in range(5):
            processes.writer.write(MessageKind.PLAN, encoder.encode(IterationPlan(())))
        facts = processes.statuses
        assert comes_true(lambda: all(facts.get(rank, Fact.PLANS_DONE) == 5 for rank in (1, 2)))
        assert [facts.get(rank, Fact.KV_BYTES) for rank in (1, 2)] == [1001, 1002]
        assert comes_true(lambda: facts.get(1, Fact.MEMORY_BYTES) == 77)  # told when it is idle
        before = facts.get(2, Fact.HEARTBEAT)
        assert comes_true(lambda: facts.get(2, Fact.HEARTBEAT) > before)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as a terminal sends them to all
            os.kill(processes.pid(1), number)
        processes.writer.write(MessageKind.PLAN, encoder.encode(IterationPlan(())))
        assert comes_true(lambda: facts.get(1, Fact.PLANS_DONE) == 6)
    finally:
        processes.close()
    assert [processes.exit_status(rank) for rank in (1, 2)] == [0, 0]


def test_a_rank_that_hangs_is_killed_in_the_end():
    processes = started(2)
    assert processes.heard(1, 30.0) == RankReady()
    stop(processes.pid(1))
    processes.close(within_s=0.3)
    assert processes.exit_status(1) == -signal.SIGKILL


def test_a_rank_that_cannot_load_says_why():
    processes = started(2, "refuses")
    assert processes.heard(1, 30.0) == RankFault("num-things: 3 is too odd")
    assert comes_true(lambda: processes.exit_status(1) == 1)
    processes.close()


def test_each_line_of_a_ranks_log_says_whose_it_is_in_the_form_that_was_asked_for(capfd: pytest.CaptureFixture[str]):
    processes = started(2, "fails")
    try:
        assert processes.heard(1, 30.0) == RankReady()
        processes.writer.write(MessageKind.PLAN, PlanEncoder().encode(IterationPlan(())))
        assert comes_true(lambda: processes.statuses.get(1, Fact.PLANS_FAILED) == 1)
    finally:
        processes.close()
    (line,) = capfd.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["logger"], told["message"]) == ("rank 1, service.distributed.plan_follower", "plan 1 failed")
    assert "as the test wants" in told["exception"]


def test_who_is_gone_says_nothing_and_ends_before_it_was_told():
    processes = RankProcesses(2, WORKS)  # which waits for its task
    processes.close()
    assert processes.exit_status(1) == 0
    assert processes.heard(1) is None


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_no_rank_outlives_the_first_however_it_ends(stopped: bool):
    with subprocess.Popen(
        [sys.executable, "-m", "tests.distributed.parent"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        if stopped:
            stop(pids[0])
        parent.kill()
    assert comes_true(lambda: not any(map(is_running, pids)), within_s=10.0)


LOGS_MUCH = """
import time
from service.distributed.control_ring import MessageKind
from service.distributed.plan_codec import PlanEncoder
from service.core.iteration import IterationPlan
from service.distributed.rank_status import Fact
from tests.distributed.test_rank_processes import comes_true, started

processes, encoder = started(2, "fails"), PlanEncoder()
assert processes.heard(1, 30.0) is not None
for _ in range(300):
    processes.writer.write(MessageKind.PLAN, encoder.encode(IterationPlan(())))
print(comes_true(lambda: processes.statuses.get(1, Fact.PLANS_FAILED) == 300), flush=True)
processes.close()
"""


def test_a_rank_waits_for_nobody_who_reads_its_log():
    """It tells of 300 faults, some 300 KB; a pipe that nobody reads takes 64."""
    done = subprocess.Popen(
        [sys.executable, "-c", LOGS_MUCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with done:
        assert done.stdout is not None and done.stderr is not None
        assert done.stdout.readline() == "True\n"
        log = done.stderr.read()
        assert done.wait(30) == 0
    assert "rank 1, service.distributed.plan_follower" in log
