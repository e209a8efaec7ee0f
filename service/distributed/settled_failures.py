"""Failed launches on a GPU with several ranks: what was launched before the failure must finish first."""

from __future__ import annotations

import time

import torch

from service.core.iteration import IterationPlan
from service.distributed.plan_follower import RankUseless
from service.engine.ports import Executor, PendingIteration

SETTLES_WITHIN_S = 4.0
"""Earlier iterations, and what this one has launched, take a few seconds at most."""

_LOOK_EVERY_S = 0.001


class SettledFailures:
    """An Executor around this rank's own, for the current device's current stream.

    If the inner `launch` fails, this one raises the same error after the device has finished everything launched.

    Ranks that fail at different places have launched different numbers of exchanges. One device then waits for an
    exchange that the other rank will not start, and would match it with one of the next plan. So if the device has not
    finished within SETTLES_WITHIN_S, RankUseless is raised.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def launch(self, plan: IterationPlan) -> PendingIteration:
        try:
            return self._executor.launch(plan)
        except RankUseless:
            raise
        except Exception as fault:
            if not _settles():
                why = f"{type(fault).__name__}: {fault}"
                raise RankUseless(f"an iteration failed at a different place than on the other ranks: {why}") from fault
            raise


def _settles() -> bool:
    """Whether the device finishes all launched work within SETTLES_WITHIN_S."""
    done = torch.cuda.Event()
    done.record()
    deadline_s = time.monotonic() + SETTLES_WITHIN_S
    while not done.query():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
