from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compile_fork_server import Trial, TrialLimits
from service.structured.compile_trials import CompileTrials
from tests.structured.tiny_grammars import table

GOOD = GrammarSpec("regex", "[a-z]+", "regex")


def bomb(number: int) -> GrammarSpec:
    return GrammarSpec("json_schema", f'{{"type": "integer", "multipleOf": {number}}}', "guided_json")


@pytest.fixture(scope="module")
def trials() -> Iterator[CompileTrials]:
    trials = CompileTrials(table(), TrialLimits(cpu_s=0.3, wall_s=30.0, busy_wall_s=0.2))
    yield trials
    trials.close()


def pid(trials: CompileTrials) -> int:
    assert trials._process is not None
    return trials._process._popen.pid


def test_what_compiles_within_the_limits_passes_and_what_is_wrong_is_told(trials: CompileTrials) -> None:
    assert trials.run(GOOD).error is None
    large = trials.run(GrammarSpec("json_schema", '{"type": "integer", "multipleOf": 9973}', "guided_json"))
    assert large.error is None
    assert large.num_bytes > 2**20
    assert trials.run(GrammarSpec("regex", "(", "regex")) == Trial("pattern (: unclosed group")


def test_what_breaks_a_limit_is_ended_and_the_next_is_tried_by_the_same_process(trials: CompileTrials) -> None:
    trials.start()
    process = pid(trials)
    assert trials.run(bomb(9999991)) == Trial("takes longer than 0.3 s to compile", is_costly=True)
    assert trials.run(GOOD).error is None
    assert pid(trials) == process


def test_trials_run_beside_each_other(trials: CompileTrials) -> None:
    """A bomb does not keep the next grammar waiting."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(trials.run, bomb(9999973))
        assert trials.run(GOOD).error is None
        assert running.result().is_costly


def test_while_others_wait_a_long_trial_gives_way() -> None:
    trials = CompileTrials(table(), TrialLimits(cpu_s=20.0, wall_s=60.0, busy_wall_s=0.2))
    with ThreadPoolExecutor(1) as pool:
        assert trials.run(GOOD).error is None
        running = pool.submit(trials.run, bomb(9999991))
        time.sleep(0.3)
        assert not running.done()
        trials.note_waiting(1)
        assert running.result(15) == Trial(gave_way=True)
    trials.close()


def test_a_process_that_is_killed_is_replaced(trials: CompileTrials) -> None:
    assert trials.run(GOOD).error is None
    first = pid(trials)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(trials.run, bomb(9999991))
        time.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        assert running.result(15).gave_way
    assert trials.run(GOOD).error is None
    assert pid(trials) != first


def test_the_process_is_in_no_terminals_foreground_and_ends_with_its_trials(trials: CompileTrials) -> None:
    other = CompileTrials(table(), TrialLimits())
    assert other.run(GOOD).error is None
    process = other._process
    assert process is not None
    assert os.getsid(process._popen.pid) != os.getsid(0)
    assert process._popen.stdin is not None
    process._messages.put(None)  # closes its input, as the end of the service does
    assert process._popen.wait(10) == 0
    other.close()


def test_notes_and_the_end_wait_for_nothing() -> None:
    """Also while the process reads the vocabulary: they are called on the event loop."""
    trials = CompileTrials(table(), TrialLimits())
    trials.start()
    started_s = time.monotonic()
    for num_waiting in range(20_000):  # more than a pipe takes
        trials.note_waiting(num_waiting)
    trials.close()
    assert time.monotonic() - started_s < 1.0
