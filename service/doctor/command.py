"""`headrace doctor`: every check, its verdict and, if something is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.doctor.accelerator import check_compiler, check_gpu, check_torch
from service.doctor.finding import Check, Finding, Verdict, fault
from service.doctor.machine import (
    check_address,
    check_cores,
    check_folders,
    check_memory,
    check_open_files,
    check_python,
)
from service.doctor.model import check_model
from service.errors import ConfigError
from service.settings.reader import read_settings
from service.settings.settings import Settings

CHECKS: tuple[Check, ...] = (
    check_python,
    check_torch,
    check_gpu,
    check_compiler,
    check_cores,
    check_memory,
    check_open_files,
    check_address,
    check_folders,
    check_model,
)

_USAGE = """\
usage: headrace doctor [options of `headrace serve`] [MODEL]

Checks whether this machine can serve this model with these options. Prints a verdict for each check and, unless it is
ok, what to do. Loads no weights, opens no port, leaves nothing behind. The exit status is 1 if there is a fault.
"""
_WIDTH = 14


def main(arguments: Sequence[str]) -> int:
    """Print the findings as they come; returns the exit status."""
    if {"-h", "--help"} & {*arguments}:
        print(_USAGE, end="")
        return 0
    try:
        settings = read_settings([*arguments])
    except ConfigError as error:
        _tell(fault("settings", str(error), "`headrace serve --help` lists every setting"))
        return 1
    counts = dict.fromkeys(Verdict, 0)
    for finding in examine(settings):
        counts[finding.verdict] += 1
        _tell(finding)
    print(f"\nfaults: {counts[Verdict.FAULT]}, warnings: {counts[Verdict.WARNING]}")
    return 1 if counts[Verdict.FAULT] else 0


def examine(settings: Settings, checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """An exception in a check is a fault like any other, and the next checks are run all the same."""
    for check in checks:
        try:
            yield from check(settings)
        except Exception as error:
            subject = check.__name__.removeprefix("check_").replace("_", " ")
            yield fault(subject, f"{type(error).__name__}: {error}", "this is a defect of the check: please report it")


def _tell(finding: Finding) -> None:
    print(f"{finding.verdict:<8} {finding.subject:<{_WIDTH}} {finding.found}", flush=True)
    if finding.mend:
        print(f"{'':<8} {'':<{_WIDTH}} -> {finding.mend}", flush=True)
