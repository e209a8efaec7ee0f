"""A rank's process with everything but the model: `python -m tests.distributed.fake_worker BEHAVIOUR LIFELINE`.

behaviour: `works`; `refuses`: cannot load; `crashes`: while it loads; `fails`: every plan; `slow`: 0.2 s a plan;
`stuck`: in its second plan, for ever.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection

from service.core.iteration import IterationPlan
from service.distributed.rank_task import Inherited, RankModel, RankTask
from service.distributed.worker import main
from service.errors import ConfigError
from tests.distributed.held_adapters import Held
from tests.distributed.scene import Done, Scripted

BEHAVIOUR = sys.argv[1]


def behave(number: int, plan: IterationPlan) -> Done:
    if BEHAVIOUR == "fails":
        return Done(fault=ValueError("as the test wants"))
    if BEHAVIOUR == "slow":
        time.sleep(0.2)
    if BEHAVIOUR == "stuck" and number == 2:
        time.sleep(1000)
    return Done()


def load(inherited: Inherited, task: RankTask) -> RankModel:
    if BEHAVIOUR == "refuses":
        raise ConfigError("num-things: 3 is too odd")
    if BEHAVIOUR == "crashes":
        os._exit(3)
    return RankModel(Scripted(behave), 1000 + inherited.rank, lambda: 77, False, Held())


sys.exit(main(Connection(int(sys.argv[2])), lambda: load))
