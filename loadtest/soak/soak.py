"""The soak: rounds of traffic with a rest after each, and SIGTERM under load at the end.

Rests reveal leaks: there are no clients, so nothing should be held for any. In every second round all clients
disconnect at once; in the others each waits for its answer.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from loadtest.invariants import Invariant
from loadtest.server_process import RunningServer
from loadtest.soak.canary import golden_answers, is_same
from loadtest.soak.clients import ANSWERED_WITHIN_S, Client, Traffic
from loadtest.soak.server_view import ServerView
from loadtest.soak.verdict import Bounds, Rest, invariants_of_rests

ENDS_WITHIN_S = 45.0
"""Time after SIGTERM: --shutdown-timeout plus the final cleanup."""

_HEALTH_WITHIN_S = 10.0
_LOOK_EVERY_S = 1.0
_LOAD_BEFORE_SIGTERM_S = 3.0
_REST_GIVEN_UP_S = 30.0
_FINISHED_WITHIN_S = 2 * ANSWERED_WITHIN_S


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: traffic and rests together. num_large_rounds: how many of the first rounds have only large requests."""

    seconds: float
    round_s: float = 10.0
    num_clients: int = 24
    seed: int = 0
    num_large_rounds: int = 2
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(slots=True)
class Findings:
    """peak_mb: during traffic. num_golden: canary checks without a change. ended: why the soak ended early, or None."""

    rests: list[Rest] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_faults: int = 0
    peak_mb: float = 0.0
    slowest_health_s: float = 0.0
    num_unhealthy: int = 0
    num_golden: int = 0
    num_changed: int = 0
    num_preemptions: float = 0.0
    exit_status: int | None = None
    ended: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything but the single rests and the descriptions of faults."""
        row = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in {"rests", "faults"}}
        last = self.rests[-1] if self.rests else None
        return row | {"rests": len(self.rests), "last rest": last and last._asdict() | {"held": last.held._asdict()}}

    def invariants(self, bounds: Bounds) -> list[Invariant]:
        return [
            Invariant("answers that break a rule, or hang", self.num_faults, 0),
            Invariant("canary checks with a changed answer", self.num_changed, 0),
            Invariant("/health checks that were not 200", self.num_unhealthy, 0),
            Invariant("/health, s, slowest", self.slowest_health_s, _HEALTH_WITHIN_S),
            *invariants_of_rests(self.rests, bounds),
            Invariant("exit status after SIGTERM", self.exit_status, 0),
            Invariant("soak cut short", int(self.ended is not None), 0),
        ]


async def soak(server: RunningServer, port: int, plan: Plan, tell: Callable[[str], None]) -> Findings:
    """Run the plan and shut the server down. tell: called with a line after each round."""
    run = _Soak(server, port, plan)
    try:
        await run.rounds(tell)
        await run.end()
    except Exception as fault:
        run.findings.ended = f"{type(fault).__name__}: {fault}"
    return run.result()


class _Soak:
    def __init__(self, server: RunningServer, port: int, plan: Plan) -> None:
        self._server = server
        self._port = port
        self._plan = plan
        self._view = ServerView(port, server.pid)
        self._traffic = Traffic(port)
        self.findings = Findings(seen=self._traffic.seen, faults=self._traffic.faults)

    def result(self) -> Findings:
        self.findings.num_faults = self._traffic.num_faults
        return self.findings

    async def rounds(self, tell: Callable[[str], None]) -> None:
        golden = await golden_answers(self._port, ANSWERED_WITHIN_S)
        began_s = time.monotonic()
        number = 0
        while number < 2 or time.monotonic() - began_s < self._plan.seconds:
            await self._round(number, golden)
            waited_s = await self._view.rest(_REST_GIVEN_UP_S)
            await self._check_golden(golden)
            await self._view.rest(_REST_GIVEN_UP_S)
            rest = Rest(time.monotonic() - began_s, waited_s, self._view.holdings())
            self.findings.rests.append(rest)
            tell(
                f"{rest.at_s:6.0f} s: {rest.held.resident_mb:.1f} MB, {rest.held.open_files} files, {rest.held.threads}"
                f" threads; {self._traffic.num_faults} faults; at rest after {waited_s:.2f} s"
            )
            number += 1
        preempted = [v for k, v in (await self._view.metrics()).items() if k.startswith("headrace_preemptions_total")]
        self.findings.num_preemptions = sum(preempted)

    async def end(self) -> None:
        """Send SIGTERM while clients make calls; each goes on until it is refused."""
        clients = [asyncio.create_task(self._client(f"end {index}").run_to_the_end()) for index in range(8)]
        await asyncio.sleep(_LOAD_BEFORE_SIGTERM_S)
        self._traffic.is_ending = True
        os.kill(self._server.pid, signal.SIGTERM)
        try:
            self.findings.exit_status = await asyncio.to_thread(self._server.wait, ENDS_WITHIN_S)
            await asyncio.wait(clients, timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.findings.ended = f"still running {ENDS_WITHIN_S:g} s after SIGTERM"
        for client in clients:
            client.cancel()
        for outcome in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(outcome, BaseException):
                self._traffic.note_fault(f"at the end: {outcome!r}")

    async def _round(self, number: int, golden: list[Any]) -> None:
        until_s = time.monotonic() + self._plan.round_s
        clients = [
            asyncio.create_task(
                self._client(f"{number} {index}", only_large=number < self._plan.num_large_rounds).run(until_s)
            )
            for index in range(self._plan.num_clients)
        ]
        beside = [asyncio.create_task(self._look()), asyncio.create_task(self._sing(golden))]
        all_leave = number % 2 == 1
        timeout_s = self._plan.round_s + (0.0 if all_leave else _FINISHED_WITHIN_S)
        done, _ = await asyncio.wait(clients, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in [*clients, *beside]:
            task.cancel()
        outcomes = await asyncio.gather(*done, *beside, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        await asyncio.wait(clients)

    def _client(self, name: str, *, only_large: bool = False) -> Client:
        return Client(self._traffic, f"{self._plan.seed} {name}", only_large=only_large)

    async def _look(self) -> None:
        """Check health and memory during traffic."""
        while True:
            health = await self._view.health()
            self.findings.slowest_health_s = max(self.findings.slowest_health_s, health.took_s)
            self.findings.num_unhealthy += health.status != 200
            self.findings.peak_mb = max(self.findings.peak_mb, self._view.holdings().resident_mb)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _sing(self, golden: list[Any]) -> None:
        while True:
            await self._check_golden(golden)

    async def _check_golden(self, golden: list[Any]) -> None:
        answers = await golden_answers(self._port, ANSWERED_WITHIN_S)
        changed = [(now, before) for now, before in zip(answers, golden, strict=True) if not is_same(now, before)]
        self.findings.num_golden += not changed
        if changed:
            self.findings.num_changed += 1
            self._traffic.faults.append(f"the canary: {str(changed)[:2000]}")
