"""`pytest --forked-workers N`: one process reads all tests and forks N, which run them, a file at a time.

To read all tests takes 7 s of a core, and 20 to 30 in a fresh clone: here once, where each worker would else do it.
Files go to the workers whole, since their tests share servers and models; long ones first, so that at the end no worker
is alone. A worker that ends in a test fails it, and another one takes its place. Warnings are not gathered: here they
are errors.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import NoReturn

import pytest

from tests import data_home

LONG = ["e2e", "test_forked_workers.py", "loadtest", "equivalence", "kernels", "faults", "runner", "engine"]
"""Files and folders of `tests/`: those in which most is waited for, and those of the longest tests."""

_FOLDER = Path(__file__).parent

_STOP_S = 30.0
"""For the end of a test that is interrupted, and of its fixtures."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forked-workers", type=int, default=0, metavar="N", help="run tests in N forked processes")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int, int]:
    status = yield
    if config.getoption("forked_workers"):
        _exit(status)  # to free all that was read takes 4 s of a core
    return status


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number = session.config.getoption("forked_workers")
    if not number or session.testsfailed or session.config.option.collectonly:
        return None
    _Workers(session).run(number)
    return True


class _Worker:
    """A process, and which tests it was dealt and has not ended: the first of them runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.tests: deque[int] = deque()
        self.last = 0
        self.error = ""


class _Workers:
    """Deals files to processes, and hears what becomes of each test. Tests are numbered as they were read."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        files = itertools.groupby(range(len(session.items)), lambda number: session.items[number].path)
        dealt = sorted((list(tests) for _, tests in files), key=lambda tests: place(session.items[tests[0]].path))
        self._files = deque(dealt)
        self._workers: dict[Connection, _Worker] = {}

    def run(self, number: int) -> None:
        if "tests.e2e.server_process" in sys.modules:  # tests that were read start servers
            sys.modules["tests.e2e.server_process"].begin_fork_server()
        try:
            for _ in range(min(number, len(self._files))):
                self._fork()
            while self._workers:
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._hear(connection)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGINT)
            for worker in self._workers.values():
                _wait_or_kill(worker.pid)

    def _fork(self) -> None:
        assert _num_threads() == 1, "a module of tests has started threads while it was read: they are not forked"
        ours, theirs = Pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            for connection in (ours, *self._workers):
                connection.close()
            _work(self._session, theirs)
        theirs.close()
        self._workers[ours] = _Worker(pid)

    def _hear(self, connection: Connection) -> None:
        worker = self._workers[connection]
        try:
            kind, what = connection.recv()
        except (EOFError, ConnectionResetError):
            connection.close()
            self._has_ended(self._workers.pop(connection))
            return
        if kind == "asks":
            tests = self._files.popleft() if self._files else []
            worker.tests += tests
            connection.send(tests)
        elif kind == "reports":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=what)
            self._hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                worker.last = worker.tests.popleft()
        else:
            worker.error = what

    def _has_ended(self, worker: _Worker) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not status and not worker.tests:
            return
        item = self._session.items[worker.tests.popleft() if worker.tests else worker.last]
        what = f"the worker that ran it ended, with status {status}\n{worker.error}"
        failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", what, "call")
        self._hook.pytest_runtest_logreport(report=failed)
        if worker.tests:
            self._files.appendleft(list(worker.tests))
        if self._files:
            self._fork()


def place(path: Path) -> int:
    """Where a file stands among others: first those of `LONG`, as they stand there."""
    below = path.parts[len(_FOLDER.parts) :] if path.is_relative_to(_FOLDER) else ()
    return LONG.index(below[0]) if below and below[0] in LONG else len(LONG)


def _wait_or_kill(pid: int) -> None:
    deadline_s = time.monotonic() + _STOP_S
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline_s:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _num_threads() -> int:
    """Those of libraries, too, where that can be seen."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


class _Reporter:
    """In a worker: takes the place of what writes to the terminal."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("reports", data))


def _work(session: pytest.Session, connection: Connection) -> NoReturn:
    """Runs what it is dealt, and ends this process. Who asked it to stop has its fixtures ended all the same."""
    status = 1
    try:
        _become_worker(session.config, connection)
        tests = _dealt(session, connection)
        item = next(tests, None)
        while item is not None:
            following = next(tests, None)  # asked for before: fixtures that it shares are kept
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        status = 0
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):  # nobody listens any more
            connection.send(("fails", traceback.format_exc()))
    try:
        session.config.pluginmanager.get_plugin("runner").pytest_sessionfinish(session)
        session.config.pluginmanager.get_plugin("capturemanager").suspend_global_capture(in_=True)
    finally:
        _exit(status)


def _become_worker(config: pytest.Config, connection: Connection) -> None:
    """Has its own folder of data, its own place for what tests print, and no terminal.

    It can be interrupted, also where a shell runs all of it in the background, which is then deaf to SIGINT.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data_home.use_own()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Reporter(config, connection))
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()


def _dealt(session: pytest.Session, connection: Connection) -> Iterator[pytest.Item]:
    while True:
        connection.send(("asks", None))
        tests = connection.recv()
        if not tests:
            return
        for number in tests:
            yield session.items[number]


def _exit(status: int) -> NoReturn:
    """As the interpreter would, without taking itself apart."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
