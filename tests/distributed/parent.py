"""Rank 0 of two fake ranks: says their process ids, then waits for its end. `python -m tests.distributed.parent`."""

import time

from service.distributed.rank_processes import RankProcesses
from tests.distributed.test_rank_processes import TASK, WORKS

processes = RankProcesses(3, WORKS)
processes.tell(TASK)
for rank in (1, 2):
    assert processes.heard(rank, 30.0) is not None
print(processes.pid(1), processes.pid(2), flush=True)
time.sleep(1000)
