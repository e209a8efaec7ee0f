"""Tries grammars in another process (compile_fork_server.py) before the service compiles them.

A compiled grammar cannot be passed between processes. But a trial shows that compiling it stays within limits, so the
service, which cannot interrupt a compilation, compiles only grammars that have passed one.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from service.core.grammar import GrammarSpec
from service.structured.compile_fork_server import ForkServerStart, Trial, TrialLimits
from service.structured.vocabulary import TokenTable

_logger = logging.getLogger(__name__)

_START_S = 60.0
"""How long the process may take to load the vocabulary before it is given up."""


class CompileTrials:
    """Methods may be called from any thread. The process is started by `start`, and again by a call that finds none."""

    def __init__(self, table: TokenTable, limits: TrialLimits) -> None:
        self._start_bytes = ForkServerStart(table, limits).to_bytes()
        self._answer_s = _START_S + limits.wall_s
        self._lock = threading.Lock()
        self._process: _ForkServerProcess | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process. Returns at once; trials wait until it is ready."""
        self._running()

    def run(self, spec: GrammarSpec) -> Trial:
        """Try a grammar. Blocks, at most for `TrialLimits.wall_s` plus the time to start the process."""
        process = self._running()
        try:
            return process.run(spec).result(self._answer_s)
        except (OSError, TimeoutError):
            _logger.exception("the process that tries grammars has ended, or does not answer; another will be started")
            process.end()
            return Trial(gave_way=True)

    def note_waiting(self, num_waiting: int) -> None:
        """Report how many grammars wait for a thread; if any do, trials get less time. Returns at once."""
        with self._lock:
            process = self._process
        if process is not None:
            process.send({"num_waiting": num_waiting})

    def close(self) -> None:
        with self._lock:
            self._is_closed, process, self._process = True, self._process, None
        if process is not None:
            process.end()

    def _running(self) -> _ForkServerProcess:
        with self._lock:
            if self._process is None or self._process.has_ended:
                if self._is_closed:
                    raise RuntimeError("CompileTrials is closed")
                self._process = _ForkServerProcess(self._start_bytes)
            return self._process


class _ForkServerProcess:
    """One process, and the trials that it has not answered yet."""

    def __init__(self, start_bytes: bytes) -> None:
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "service.structured.compile_fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # a Ctrl-C is for the service only, which may drain for a while
        )
        self._lock = threading.Lock()
        self._trials: dict[int, Future[Trial]] = {}
        self._num_trials = 0
        self.has_ended = False
        self._messages = SimpleQueue[bytes | None]()
        self._messages.put(start_bytes)
        for work in (self._write, self._read):
            threading.Thread(target=work, name="grammar-trials", daemon=True).start()

    def run(self, spec: GrammarSpec) -> Future[Trial]:
        """Raises OSError, directly or from the future, if the process has ended."""
        trial = Future[Trial]()
        with self._lock:
            if self.has_ended:
                raise BrokenPipeError("it has ended")
            self._num_trials += 1
            job_id = self._num_trials
            self._trials[job_id] = trial
        self.send({"id": job_id, "spec": asdict(spec)})
        return trial

    def send(self, message: Mapping[str, object]) -> None:
        """Queue a message. Returns at once; the process may still be loading the vocabulary."""
        self._messages.put(json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        self._popen.kill()

    def _write(self) -> None:
        assert self._popen.stdin is not None
        with suppress(OSError), self._popen.stdin as jobs:
            while (message := self._messages.get()) is not None:
                jobs.write(message)
                jobs.flush()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                with self._lock:
                    trial = self._trials.pop(answer["id"])
                trial.set_result(Trial(**answer["trial"]))
        with self._lock:
            self.has_ended, owed = True, list(self._trials.values())
            self._trials.clear()
        for trial in owed:
            trial.set_exception(BrokenPipeError("it has ended"))
        self._messages.put(None)
        self._popen.wait()
