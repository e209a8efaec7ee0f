"""Runs all cases against one server over many connections; then checks that the server is as before."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loadtest.fuzz.cases import make_case
from loadtest.fuzz.exchange import run_case
from loadtest.invariants import Invariant
from loadtest.process_tree import Holdings
from loadtest.server_process import RunningServer
from loadtest.soak.canary import golden_answers, is_same
from loadtest.soak.server_view import ServerView

_ANSWERED_WITHIN_S = 120.0
_RESTS_WITHIN_S = 10.0
_WARM_UP_SHARE = 0.2
_SHOWN_BYTES = 1500
_TOLD_EVERY = 5000
_FILES_BESIDE = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases from number `first` on. stall_every: every so many-th case stalls, to see the server cut it off; 0: none.

    num_shown: faults to report in full.
    """

    num_cases: int
    first: int = 0
    seed: int = 0
    num_connections: int = 32
    stall_every: int = 1000
    max_growth_mb: float = 100.0
    num_shown: int = 20


@dataclass(slots=True)
class Findings:
    """kinds: number of cases by kind. warm, after: the server's resources after the first cases and after all."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    num_faults: int = 0
    faults: list[str] = field(default_factory=list)
    num_changed: int | None = None
    warm: Holdings | None = None
    after: Holdings | None = None
    rested_s: float | None = None
    ended: str | None = None

    def invariants(self, plan: Plan) -> list[Invariant]:
        growth = files = None
        if self.warm and self.after:
            growth = self.after.resident_mb - self.warm.resident_mb
            files = self.after.open_files - self.warm.open_files
        return [
            Invariant("cases that break a rule", self.num_faults, 0),
            Invariant("cases not run", plan.num_cases - self.kinds.total(), 0),
            Invariant("canary checks with a changed answer", self.num_changed, 0),
            Invariant("to rest, s", self.rested_s, _RESTS_WITHIN_S),
            Invariant("memory, MB: growth", growth, plan.max_growth_mb),
            Invariant("open files: growth", files, _FILES_BESIDE),
            Invariant("cut short", int(self.ended is not None), 0),
        ]


async def fuzz(server: RunningServer, port: int, plan: Plan, tell: Callable[[str], None]) -> Findings:
    """Run the plan. tell: called with a line of progress now and then."""
    findings = Findings()
    try:
        await _fuzz(ServerView(port, server.pid), port, plan, findings, tell)
    except ExceptionGroup as faults:
        findings.ended = repr(faults.exceptions[0])
    except Exception as fault:
        findings.ended = repr(fault)
    return findings


async def _fuzz(view: ServerView, port: int, plan: Plan, findings: Findings, tell: Callable[[str], None]) -> None:
    golden = await golden_answers(port, _ANSWERED_WITHIN_S)
    begin, end = plan.first, plan.first + plan.num_cases
    warm_end = begin + round(plan.num_cases * _WARM_UP_SHARE)
    await _run_cases(range(begin, warm_end), view, port, plan, findings, tell)
    await view.rest(_RESTS_WITHIN_S)
    findings.warm = view.holdings()
    await _run_cases(range(warm_end, end), view, port, plan, findings, tell)
    findings.rested_s = await view.rest(_RESTS_WITHIN_S)
    again = await golden_answers(port, _ANSWERED_WITHIN_S)
    findings.num_changed = sum(not is_same(now, before) for now, before in zip(again, golden, strict=True))
    await view.rest(_RESTS_WITHIN_S)
    findings.after = view.holdings()


async def _run_cases(
    numbers: range, view: ServerView, port: int, plan: Plan, findings: Findings, tell: Callable[[str], None]
) -> None:
    left = iter(numbers)
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(plan.num_connections, len(numbers))):
            workers.create_task(_work(left, view, port, plan, findings, tell))


async def _work(
    left: Iterator[int], view: ServerView, port: int, plan: Plan, findings: Findings, tell: Callable[[str], None]
) -> None:
    for number in left:
        case = make_case(plan.seed, number, plan.stall_every)
        fault = await run_case(case, port, findings.statuses)
        findings.kinds[case.kind] += 1
        if fault is not None:
            findings.num_faults += 1
            if len(findings.faults) < plan.num_shown:
                shown = f"{case.data[:_SHOWN_BYTES]!r}"
                findings.faults.append(f"case {number} ({case.kind}): {fault}\n  pieces {case.pieces[:8]} of {shown}")
        if findings.kinds.total() % _TOLD_EVERY == 0:
            tell(
                f"{findings.kinds.total()} cases, {findings.num_faults} break a rule,"
                f" {view.holdings().resident_mb:.0f} MB"
            )


def as_json(findings: Findings) -> dict[str, Any]:
    """Everything but the descriptions of faults."""
    return {
        "cases": findings.kinds.total(),
        "kinds": dict(findings.kinds),
        "statuses": dict(findings.statuses),
        "num_faults": findings.num_faults,
        "warm": findings.warm and findings.warm._asdict(),
        "after": findings.after and findings.after._asdict(),
        "ended": findings.ended,
    }
