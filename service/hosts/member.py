"""A host that is not the head: its process stands in for rank 0, between the head and this host's ranks."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from service.config import NodeConfig
from service.distributed.control_ring import MessageKind, ReaderStalled
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_processes import WORKER, RankProcesses
from service.distributed.rank_task import MeetingPlace, RankTask
from service.distributed.rank_watch import RankWatch
from service.errors import ConfigError, ModelLoadError, ServerError
from service.hosts.adapter_pieces import AdapterAssembly
from service.hosts.handshake import Claim, NotAdmitted, Purpose, Stranger, introduce
from service.hosts.head import HOSTS_COME_WITHIN_S, TELL_EVERY_S, TOLD_NUMBERS
from service.hosts.host_facts import facts_of
from service.hosts.host_line import SIGN_EVERY_S, HostLine, LineLost, Said, Word
from service.hosts.network_interface import interface_of
from service.hosts.store_tunnel import StoreTunnel

logger = logging.getLogger("headrace")

_LOOK_EVERY_S = 0.005  # for changed counters; the head waits only for the end of swaps
_TRIES_EVERY_S = 0.5
_LAST_WORDS_S = 1.0


class _Event(NamedTuple):
    """ended: the head ended in order. lost: ranks are lost; text is why. signal: text is its name."""

    kind: Literal["ended", "lost", "signal"]
    text: str = ""


class Member:
    """For one run. task: from this host's settings; the fields that the head decides are filled in later. worker: as
    for RankProcesses."""

    def __init__(self, config: NodeConfig, task: RankTask, worker: Sequence[str] = WORKER) -> None:
        self._config = config
        self._task = task
        self._local = task.parallel.ranks_of(config.rank)
        self._processes = RankProcesses(task.parallel.num_ranks, worker, local=self._local)
        self._events = queue.SimpleQueue[_Event]()
        self._loss = RankLoss(lambda reason: self._events.put(_Event("lost", reason)))
        self._watch = RankWatch(self._processes, self._loss)
        self._is_ending = threading.Event()

    def run(self) -> int:
        """On the main thread, until the head ends it or ranks are lost; returns the exit status.

        Raises ConfigError, ModelLoadError if this host cannot join.
        """
        try:
            line = self._join()
            self._start(line, self._awaited_go(line))
            return self._serve(line)
        finally:
            self._is_ending.set()
            self._processes.kill()
            self._processes.close()

    def _join(self) -> HostLine:
        """The head may start after this host. Raises ConfigError, ModelLoadError."""
        deadline_s, tell_s = time.monotonic() + HOSTS_COME_WITHIN_S, 0.0
        while True:
            try:
                return HostLine(self._connect(Purpose.CONTROL), "the head")
            except Stranger as fault:
                raise ConfigError(f"master-addr {self._config.address}: {fault}") from fault
            except (OSError, NotAdmitted) as fault:
                now_s = time.monotonic()
                where = f"the head at {self._config.address}:{self._config.port}"
                if now_s > deadline_s:
                    raise ModelLoadError(f"{where} cannot be reached: {fault}") from fault
                if now_s > tell_s:
                    tell_s = now_s + TELL_EVERY_S
                    logger.info("waiting for %s: %s", where, fault)
            time.sleep(_TRIES_EVERY_S)

    def _connect(self, purpose: Purpose) -> socket.socket:
        connection = socket.create_connection((self._config.address, self._config.port), timeout=_LAST_WORDS_S * 5)
        try:
            introduce(connection, self._config.secret, Claim(purpose, self._config.rank))
        except BaseException:
            connection.close()
            raise
        return connection

    def _awaited_go(self, line: HostLine) -> dict[str, int]:
        line.send(Word.HELLO, json.dumps(facts_of(self._task)).encode())
        threading.Thread(target=self._tell_facts, args=(line,), name="facts", daemon=True).start()
        logger.info(
            "this is host %d of %d; waiting for all hosts to connect", self._config.rank, self._config.num_nodes
        )
        while True:
            try:
                said = line.receive()
            except LineLost as fault:
                raise ModelLoadError(str(fault)) from fault
            match said.word:
                case Word.GO:
                    numbers: dict[str, int] = json.loads(said.payload)
                    return numbers
                case Word.REFUSED:
                    raise ConfigError(f"the head rejected this host: {said.text}")
                case Word.LOST:
                    raise ModelLoadError(f"the head: {said.text}")
                case Word.END:
                    raise ModelLoadError("the head has ended before all hosts had connected")

    def _start(self, line: HostLine, numbers: dict[str, int]) -> None:
        port = StoreTunnel(lambda: self._connect(Purpose.STORE)).open()
        task = replace(
            self._task,
            **{name: type(getattr(self._task, name))(numbers[name]) for name in TOLD_NUMBERS},
            meeting=MeetingPlace(port, interface_of(line.own_address)),
        )
        self._take_signals()
        self._processes.tell(task)
        self._watch.start()
        self._in_thread(self._hear, line)
        self._in_thread(self._tell_ready, line)

    def _serve(self, line: HostLine) -> int:
        is_leaving = False
        while True:
            event = self._events.get()
            match event.kind:
                case "ended":
                    logger.info("the head is shutting down, and so is this host")
                    self._watch.stop()
                    self._processes.close()
                    line.close()
                    return 0
                case "lost":
                    self._processes.kill()
                    with contextlib.suppress(LineLost):
                        line.send(Word.LOST, event.text.encode())
                    line.finish()
                    self._is_ending.wait(_LAST_WORDS_S)  # until the head has read it and closes
                    return 1
                case "signal" if is_leaving:
                    logger.warning("%s again: ending at once", event.text)
                    return 1
                case "signal":
                    is_leaving = True
                    logger.info("%s: asking the head to shut down", event.text)
                    with contextlib.suppress(LineLost):
                        line.send(Word.LEAVES, event.text.encode())

    def _take_signals(self) -> None:
        def note(number: int, frame: object) -> None:
            self._events.put(_Event("signal", signal.Signals(number).name))

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)

    def _in_thread(self, work: Callable[[HostLine], None], line: HostLine) -> None:
        threading.Thread(target=work, args=(line,), name=work.__name__.strip("_"), daemon=True).start()

    def _hear(self, line: HostLine) -> None:
        adapters = AdapterAssembly(self._processes.adapter_lines, partial(self._tell_taken, line))
        try:
            while self._do(line, line.receive(), adapters):
                pass
        except (LineLost, ReaderStalled) as fault:
            self._loss.declare(str(fault))
        except ValueError as fault:
            self._loss.declare(f"the head sent an invalid message: {fault}")
        self._is_ending.set()

    def _tell_taken(self, line: HostLine, words: bytes) -> None:
        with contextlib.suppress(LineLost):  # who hears it ends says so
            line.send(Word.ADAPTER, words)

    def _do(self, line: HostLine, said: Said, adapters: AdapterAssembly) -> bool:
        """Returns whether more messages may follow."""
        match said.word:
            case Word.CONTROL:
                if not said.payload:
                    raise ValueError("an empty control message")
                self._processes.writer.write(MessageKind(said.payload[0]), said.payload[1:])
            case Word.FACTS:
                self._processes.statuses.put_row(0, said.payload)
            case Word.ADAPTER:
                adapters.take(said.payload)
            case Word.READY:
                line.expect_signs()
            case Word.LOST:
                self._loss.declare(f"the head: {said.text}")
                return False
            case Word.END:
                self._events.put(_Event("ended"))
                return False
            case _:
                pass
        return True

    def _tell_ready(self, line: HostLine) -> None:
        with contextlib.suppress(ServerError, LineLost):  # reported as a loss
            self._watch.wait_until_ready()
            line.send(Word.READY)

    def _tell_facts(self, line: HostLine) -> None:
        """Send the counters when they have changed, and at least every SIGN_EVERY_S as a sign of life."""
        told, told_s = b"", 0.0
        row = self._processes.statuses.row
        while not self._is_ending.wait(_LOOK_EVERY_S):
            rows, now_s = b"".join(map(row, self._local)), time.monotonic()
            if rows == told and now_s - told_s < SIGN_EVERY_S:
                continue
            told, told_s = rows, now_s
            try:
                line.send(Word.FACTS, rows)
            except LineLost:  # who hears it ends says so
                return
