"""A plan that fails on a GPU, where several ranks compute: what it had launched until then must come to its end."""

from __future__ import annotations

import time

import torch

from service.core.iteration import IterationPlan
from service.distributed.plan_follower import RankUseless
from service.engine.ports import Executor, PendingIteration

SETTLES_WITHIN_S = 4.0
"""The iterations before, and what was launched of this one: seconds at most."""

_LOOK_EVERY_S = 0.001


class SettledFailures:
    """An Executor: another's, of this rank's own part, on the current device's current stream.

    `launch` fails as the other's does, but not before the device has done all. Ranks that fail at different places have
    launched different numbers of exchanges. Then a device is left waiting for one that the other rank will not begin,
    and would take the next plan's for it: so it raises RankUseless where the device is not done in SETTLES_WITHIN_S.
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
                raise RankUseless(f"an iteration failed at another place than on the other ranks: {why}") from fault
            raise


def _settles() -> bool:
    """Whether the device does all that was launched."""
    done = torch.cuda.Event()
    done.record()
    deadline_s = time.monotonic() + SETTLES_WITHIN_S
    while not done.query():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
