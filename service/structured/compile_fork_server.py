"""The process in which grammars are tried: it has loaded the vocabulary, and forks once per grammar.

    python -m service.structured.compile_fork_server

A fork has CPU and memory limits that the kernel enforces, and if it crashes, even by a stack overflow, nothing else
does. This process is started fresh, not forked from the service, because the service has threads and a device. It ends
when its standard input is closed, so it ends with the service, however that ends.

Input: `ForkServerStart.to_bytes`, then one JSON object per line: a job, or how many others wait. Output: one JSON
object per line with the job's id and its `Trial`.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar, read_seconds
from service.structured.grammar_errors import grammar_fault
from service.structured.vocabulary import TokenTable, Vocabulary, vocabulary_of_table


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """Limits on compiling one grammar.

    cpu_s, memory_bytes: beyond these the grammar is refused. wall_s, busy_wall_s: the longest time while no other
    grammar waits, and while some do; beyond these the trial is abandoned and may be repeated. read_s: time in Python
    code (see `read_seconds`), which will later block the service.
    """

    cpu_s: float = 2.0
    memory_bytes: int = 96 * 2**20
    wall_s: float = 8.0
    busy_wall_s: float = 0.5
    read_s: float = 0.25


@dataclass(frozen=True, slots=True)
class ForkServerStart:
    table: TokenTable
    limits: TrialLimits

    def to_bytes(self) -> bytes:
        data = pickle.dumps(self)
        return len(data).to_bytes(_LENGTH_BYTES) + data


_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """error: why the grammar is refused; None: it compiled within the limits. is_costly: it exceeded a limit, and would
    again. gave_way: the trial was abandoned for others; it may succeed another time. num_bytes: memory of the compiled
    grammar; 0 if unknown."""

    error: str | None = None
    is_costly: bool = False
    gave_way: bool = False
    num_bytes: int = 0


@dataclass(slots=True)
class _Fork:
    job_id: int
    started_s: float
    is_late: bool = False


class ForkServer:
    """answers: file descriptor for trials. Each is written in one piece, short enough to be atomic on a pipe."""

    def __init__(self, vocabulary: Vocabulary, limits: TrialLimits, answers: int) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._answers = answers
        self._forks: dict[int, _Fork] = {}
        self._num_waiting = 0
        self._wakeup, wakeup_end = os.pipe()
        os.set_blocking(wakeup_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # needed for the wakeup descriptor to be written to
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)

    def serve(self, jobs: int) -> None:
        """Serve until the end of file on `jobs`, then kill all forks."""
        begun = b""
        while True:
            readable, _, _ = select.select([jobs, self._wakeup], [], [], self._next_deadline_s())
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            if jobs in readable:
                data = os.read(jobs, 2**20)
                if not data:
                    break
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            self._end_late()
            self._reap()
        for pid in self._forks:
            os.kill(pid, signal.SIGKILL)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "num_waiting" in message:
            self._num_waiting = message["num_waiting"]
            return
        job_id, spec = message["id"], GrammarSpec(**message["spec"])
        pid = os.fork()
        if pid == 0:
            self._be_fork(job_id, spec)
        self._forks[pid] = _Fork(job_id, time.monotonic())

    def _be_fork(self, job_id: int, spec: GrammarSpec) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # drop what the client's grammar prints
            _limit_self(self._limits)
            self._answer(job_id, try_compile(spec, self._vocabulary, self._limits))
            status = 0
        finally:
            os._exit(status)

    def _answer(self, job_id: int, trial: Trial) -> None:
        os.write(self._answers, json.dumps({"id": job_id, "trial": asdict(trial)}).encode() + b"\n")

    def _wall_s(self) -> float:
        return self._limits.busy_wall_s if self._num_waiting else self._limits.wall_s

    def _next_deadline_s(self) -> float | None:
        """Seconds until the oldest fork exceeds its time; None: no fork runs."""
        if not self._forks:
            return None
        first_s = min(fork.started_s for fork in self._forks.values())
        return max(0.01, first_s + self._wall_s() - time.monotonic())

    def _end_late(self) -> None:
        limit_s = self._wall_s()
        for pid, fork in self._forks.items():
            if time.monotonic() - fork.started_s > limit_s and not fork.is_late:
                fork.is_late = True
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._forks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            fork = self._forks.pop(pid)
            if status != 0:
                self._answer(fork.job_id, Trial(gave_way=True) if fork.is_late else self._broke_limits(status))

    def _broke_limits(self, status: int) -> Trial:
        match os.waitstatus_to_exitcode(status):
            case code if code == -signal.SIGPROF:
                return Trial(f"takes longer than {self._limits.cpu_s:g} s to compile", is_costly=True)
            case code if code == -signal.SIGABRT:  # an allocation was refused
                return Trial(f"takes more than {self._limits.memory_bytes // 2**20} MiB to compile", is_costly=True)
        return Trial("the grammar compiler crashes on it", is_costly=True)


def try_compile(spec: GrammarSpec, vocabulary: Vocabulary, limits: TrialLimits) -> Trial:
    """Compile the grammar and discard the result."""
    try:
        if read_seconds(spec, vocabulary) > limits.read_s:
            return Trial("takes too long to parse", is_costly=True)
        before = _memory_pages()
        grammar = compile_grammar(spec, vocabulary)
        num_bytes = (_memory_pages().resident - before.resident) * resource.getpagesize()
        del grammar
    except ValueError as error:
        return Trial(grammar_fault(str(error)))
    return Trial(num_bytes=max(0, num_bytes))


class _MemoryPages(NamedTuple):
    virtual: int
    resident: int


def _memory_pages() -> _MemoryPages:
    """Of this process; zeros if the system does not report them."""
    statm = Path("/proc/self/statm")
    return _MemoryPages(*map(int, statm.read_text().split()[:2])) if statm.exists() else _MemoryPages(0, 0)


def _limit_self(limits: TrialLimits) -> None:
    os.nice(5)  # serving has priority
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if virtual := _memory_pages().virtual:
        most = virtual * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)  # SIGPROF ends the process


def main() -> None:
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep stray output away from the answers
    jobs = sys.stdin.fileno()
    start: ForkServerStart = pickle.loads(_read_exactly(jobs, int.from_bytes(_read_exactly(jobs, _LENGTH_BYTES))))
    vocabulary, limits = vocabulary_of_table(start.table), start.limits
    del start
    gc.freeze()  # a garbage collection in a fork would copy all shared pages
    ForkServer(vocabulary, limits, answers).serve(jobs)


def _read_exactly(descriptor: int, num_bytes: int) -> bytes:
    """Raises SystemExit if the input ends early: the service has ended."""
    data = bytearray()
    while len(data) < num_bytes:
        piece = os.read(descriptor, num_bytes - len(data))
        if not piece:
            raise SystemExit(0)
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main()
