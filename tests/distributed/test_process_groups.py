from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOIN = """
import os, sys, torch
from service.config import ParallelConfig
from service.distributed.process_groups import join_ranks
rank, meeting_point = int(sys.argv[1]), int(sys.argv[2])
parallel, stage = join_ranks(rank, ParallelConfig(2), f"/proc/self/fd/{meeting_point}", torch.device("cpu"))
assert stage.size == 1
total = parallel.all_reduce(torch.tensor([1.0 + rank]))
gathered = parallel.all_gather(torch.tensor([rank]))
print(parallel.rank, parallel.size, total.item(), gathered.flatten().tolist(), parallel.least(5 - rank),
      parallel.of_first(str(rank)), os.environ["NCCL_NVLS_ENABLE"], os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"])
"""


def test_ranks_meet_in_a_file_of_memory_and_exchange_tensors():
    """Whatever the environment asks for: multicast of NVLink stays off."""
    meeting_point = os.memfd_create("meeting-point")
    try:
        processes = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", JOIN, str(rank), str(meeting_point)],
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=(meeting_point,),
                env={**os.environ, "NCCL_NVLS_ENABLE": "1"},
                cwd=Path(__file__).parents[2],
            )
            for rank in range(2)
        ]
        told = [process.communicate(timeout=100)[0].split(" ", 1) for process in processes]
    finally:
        os.close(meeting_point)
    assert told == [[str(rank), "2 3.0 [0, 1] 4 0 0 1\n"] for rank in range(2)]
