"""The head's side of several hosts: admits hosts, sends them messages, and notices when one is lost."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from service.config import NodeConfig, ParallelConfig
from service.distributed.adapter_lines import AdapterLines, AdapterSharing
from service.distributed.control_ring import MessageKind, MessageWriter, ReaderStalled
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import ROW_BYTES, RankStatuses
from service.distributed.rank_task import MeetingPlace, RankTask
from service.errors import ConfigError, ModelLoadError
from service.hosts.adapter_pieces import AdaptersOfHosts
from service.hosts.handshake import Claim, NotAdmitted, Purpose, admit
from service.hosts.host_facts import differences, facts_of
from service.hosts.host_line import SIGN_EVERY_S, HostLine, LineLost, Said, Word
from service.hosts.network_interface import interface_of
from service.hosts.store_tunnel import join

logger = logging.getLogger("headrace")

HOSTS_COME_WITHIN_S = 600.0
"""Time to schedule pods, pull images and download models. Every TELL_EVERY_S the log says which hosts are missing."""
TELL_EVERY_S = 10.0
ENDS_WITHIN_S = 5.0
"""For another host, whose ranks have 3 s (rank_processes.py)."""
LOST_ENDS_WITHIN_S = 1.0
"""The same after a loss: the lost host may be the one that does not answer."""

TOLD_NUMBERS = "max_num_seqs", "max_num_batched_tokens", "enforce_eager"
"""The fields of a task that the head decides."""

MOST_STRANGERS = 8
"""Limit on connections that have not proved their identity yet, for which each has 5 s. More are closed at once."""
_MOST_HEARD = 1 << 16  # limit on a frame from another host; its counters are the largest


class _Member:
    """A host that has joined; an AdapterHost. hello: its facts, None until it has sent them."""

    def __init__(self, node: int, line: HostLine) -> None:
        self.node = node
        self.line = line
        self.hello: dict[str, str] | None = None
        self.is_ready = False
        self.adapter_answers = queue.SimpleQueue[str]()

    def send_piece(self, payload: bytes) -> str:
        try:
            self.line.send(Word.ADAPTER, payload)
        except LineLost as fault:
            return str(fault)
        return ""


class HeadHosts:
    """All hosts but the head, from `listen` to `close`. After `gather`, losing a host's connection means that the ranks
    are lost.

    on_leave(reason): another host was asked to end; called once, from any thread.
    """

    def __init__(self, config: NodeConfig, parallel: ParallelConfig) -> None:
        self._config = config
        self._parallel = parallel
        self._changed = threading.Condition()
        self._members: dict[int, _Member] = {}
        self._has_gathered = self._is_closing = self._is_leaving = False
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self._tell_strangers_s = 0.0
        self._store_port: int | None = None

    def listen(self, statuses: RankStatuses, loss: RankLoss, on_leave: Callable[[str], None]) -> None:
        """Raises ConfigError if it cannot listen."""
        self._statuses, self._loss, self._on_leave = statuses, loss, on_leave
        config = self._config
        try:
            family, _, _, _, address = socket.getaddrinfo(config.address, config.port, type=socket.SOCK_STREAM)[0]
            self._listening = socket.create_server(address[:2], family=family, backlog=64)
        except OSError as fault:
            where = f"master-addr {config.address}, master-port {config.port}"
            raise ConfigError(f"{where}: the head, node-rank 0, cannot listen there: {fault}") from fault
        logger.info("waiting for %d other hosts at %s:%d", config.num_nodes - 1, *self._listening.getsockname()[:2])
        threading.Thread(target=self._accept, name="hosts", daemon=True).start()
        threading.Thread(target=self._give_signs, name="signs for hosts", daemon=True).start()

    def meet(self, task: RankTask, open_store: Callable[[], int]) -> MeetingPlace:
        """Wait until all hosts have come, and have them load as this host does; returns where the ranks meet.

        open_store: makes the store and returns its port on the loopback interface. Raises ModelLoadError, ServerError,
        LineLost.
        """
        self.gather(facts_of(task))
        port = open_store()
        numbers = task.max_num_seqs, task.max_num_batched_tokens, int(task.enforce_eager)
        self.go(dict(zip(TOLD_NUMBERS, numbers, strict=True)), port)
        return MeetingPlace(port, interface_of(self.own_address))

    def gather(self, facts: Mapping[str, str], within_s: float = HOSTS_COME_WITHIN_S) -> None:
        """Wait until all hosts have come with the same facts.

        A host with different facts is refused, and may come again. Raises ModelLoadError if a host does not come in
        time, ServerError if a rank is lost.
        """
        deadline_s, tell_s = time.monotonic() + within_s, time.monotonic() + TELL_EVERY_S
        with self._changed:
            while missing := self._missing(facts):
                now_s = time.monotonic()
                self._loss.check()
                if now_s > deadline_s:
                    raise ModelLoadError(f"{missing} did not connect within {within_s:.0f} s")
                if now_s > tell_s:
                    tell_s = now_s + TELL_EVERY_S
                    logger.info("still waiting for %s", missing)
                self._changed.wait(SIGN_EVERY_S)
            self._has_gathered = True

    def go(self, numbers: Mapping[str, int], store_port: int) -> None:
        """Have the other hosts load. store_port: on this host's loopback interface. Raises LineLost."""
        self._store_port = store_port
        for member in self._members.values():
            member.line.send(Word.GO, json.dumps(dict(numbers)).encode())

    @property
    def own_address(self) -> str:
        """This host's address as the others reach it. After `gather`."""
        return next(iter(self._members.values())).line.own_address

    def wait_until_ready(self) -> None:
        """Wait until all hosts are ready; from then on silence is a loss. Raises ServerError if one is lost."""
        with self._changed:
            while not all(each.is_ready for each in self._members.values()):
                self._loss.check()
                self._changed.wait(SIGN_EVERY_S)
        for member in self._members.values():
            member.line.expect_signs()
            member.line.send(Word.READY)

    def writer(self, local: MessageWriter) -> MessageWriter:
        """Writes to the ranks of all hosts. local: writes to this host's ranks."""
        return _ToldHosts(local, list(self._members.values()))

    def adapters(self, local: AdapterLines) -> AdapterSharing:
        """Shares adapters with the ranks of all hosts; after all are ready. local: the lines to this host's ranks."""
        return AdaptersOfHosts(local, list(self._members.values()))

    def lose(self, reason: str) -> None:
        """Tell the hosts that can still be reached that a rank is lost."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for member in list(self._members.values()):
            with contextlib.suppress(LineLost):
                member.line.send(Word.LOST, reason.encode())
            member.line.finish()

    def close(self) -> None:
        """Ask the hosts to end, unless they were told of a loss. Returns when they have ended, or after ENDS_WITHIN_S.
        May be called again."""
        with self._changed:
            tells, self._is_closing = not self._is_closing, True
        self._listening.close()
        for member in list(self._members.values()):
            if tells:
                with contextlib.suppress(LineLost):
                    member.line.send(Word.END)
        with self._changed:
            self._changed.wait_for(lambda: not self._members, ENDS_WITHIN_S if tells else LOST_ENDS_WITHIN_S)
            for member in self._members.values():
                member.line.close()

    def _missing(self, facts: Mapping[str, str]) -> str:
        """Names the missing hosts, and refuses those with different facts. Under the lock."""
        for member in list(self._members.values()):
            differing = "" if member.hello is None else differences(member.hello, facts)
            if differing:
                del self._members[member.node]
                logger.error("rejected %s, whose settings differ: %s", member.line.who, differing)
                self._refuse(member.line, differing)
        nodes = range(1, self._config.num_nodes)
        missing = [node for node in nodes if node not in self._members or self._members[node].hello is None]
        return ", ".join(f"host {node} of {self._config.num_nodes}" for node in missing)

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError:
                if self._is_closing:
                    return
                time.sleep(SIGN_EVERY_S)  # perhaps out of file descriptors
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._admit, args=(connection, address[0]), name="host", daemon=True).start()

    def _admit(self, connection: socket.socket, address: str) -> None:
        try:
            try:
                claim = admit(connection, self._config.secret)
            finally:
                self._strangers.release()
        except NotAdmitted as fault:
            connection.close()
            self._tell_stranger(address, fault)
            return
        match claim:
            case Claim(Purpose.STORE):
                self._join_store(connection)
            case Claim(Purpose.CONTROL, node):
                self._hear(node, HostLine(connection, f"host {node} ({address})"))

    def _tell_stranger(self, address: str, fault: NotAdmitted) -> None:
        """At most one line in TELL_EVERY_S, so that strangers cannot fill the log."""
        now_s = time.monotonic()
        if now_s > self._tell_strangers_s:
            self._tell_strangers_s = now_s + TELL_EVERY_S
            logger.warning("rejected a connection from %s to master-port: %s", address, fault)

    def _join_store(self, connection: socket.socket) -> None:
        if self._store_port is None:
            connection.close()
            return
        join(connection, socket.create_connection(("127.0.0.1", self._store_port)))

    def _refuse(self, line: HostLine, why: str) -> None:
        with contextlib.suppress(LineLost):
            line.send(Word.REFUSED, why.encode())
        line.finish()

    def _hear(self, node: int, line: HostLine) -> None:
        """Read frames until the connection ends. Those of a refused host are read, too: closing before would take back
        the refusal."""
        member = _Member(node, line)
        with self._changed:
            other = self._members.get(node)
            is_refused = self._is_closing or not 0 < node < self._config.num_nodes or other is not None
            if is_refused:
                self._refuse(line, self._why_refused(node, other))
            else:
                self._members[node] = member
        try:
            while True:
                said = line.receive(_MOST_HEARD)
                if not is_refused:
                    self._do(member, said)
        except (LineLost, ValueError) as fault:
            if not is_refused:
                self._forget(member, str(fault))
                member.adapter_answers.put(str(fault))
        finally:
            line.close()

    def _why_refused(self, node: int, other: _Member | None) -> str:
        if other is not None:
            return f"node-rank {node} is already taken by {other.line.who}"
        if not 0 < node < self._config.num_nodes:
            return f"node-rank {node} must be at least 1 and less than nnodes ({self._config.num_nodes})"
        return "it is shutting down"

    def _forget(self, member: _Member, why: str) -> None:
        with self._changed:
            if self._members.get(member.node) is not member:  # it was refused before
                return
            is_loss = self._has_gathered and not self._is_closing
            if not is_loss:
                del self._members[member.node]
            self._changed.notify_all()
        if is_loss:
            self._loss.declare(why)
            with self._changed:
                self._members.pop(member.node, None)
                self._changed.notify_all()
        elif not self._is_closing:
            logger.warning("%s, before all hosts had connected", why)

    def _do(self, member: _Member, said: Said) -> None:
        """Raises ValueError for a malformed message."""
        match said.word:
            case Word.FACTS:
                self._put_rows(member.node, said.payload)
            case Word.HELLO:
                facts = json.loads(said.payload)
                if not isinstance(facts, dict):
                    raise ValueError(f"{member.line.who} sent malformed facts")
                member.hello = {str(name): str(value) for name, value in facts.items()}
            case Word.READY:
                logger.info("%s is ready", member.line.who)
                member.is_ready = True
            case Word.ADAPTER:
                member.adapter_answers.put(f"{member.line.who}: {said.text}" if said.payload else "")
            case Word.LOST:
                raise LineLost(f"{member.line.who}: {said.text}")
            case Word.LEAVES if not self._is_leaving:
                self._is_leaving = True
                self._on_leave(f"{member.line.who}: {said.text}")
            case _:
                pass
        with self._changed:
            self._changed.notify_all()

    def _put_rows(self, node: int, rows: bytes) -> None:
        for place, rank in enumerate(self._parallel.ranks_of(node)):
            self._statuses.put_row(rank, rows[place * ROW_BYTES : (place + 1) * ROW_BYTES])

    def _give_signs(self) -> None:
        while not self._is_closing:
            for member in self._joined():
                with contextlib.suppress(LineLost):  # the receiving thread reports the loss
                    member.line.send(Word.FACTS, self._statuses.row(0))
            time.sleep(SIGN_EVERY_S)

    def _joined(self) -> Iterator[_Member]:
        with self._changed:
            members = list(self._members.values())
        yield from members


class _ToldHosts:
    """A MessageWriter to other hosts and this one."""

    def __init__(self, local: MessageWriter, members: list[_Member]) -> None:
        self._local = local
        self._members = members

    def write(self, kind: MessageKind, payload: bytes = b"") -> None:
        for member in self._members:  # first, since they are farther away
            try:
                member.line.send(Word.CONTROL, bytes([kind]) + payload)
            except LineLost as fault:
                raise ReaderStalled(member.line.who) from fault
        self._local.write(kind, payload)
