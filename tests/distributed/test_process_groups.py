from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service.config import ParallelConfig
from service.distributed.process_groups import open_store, serve_store
from service.distributed.rank_task import MeetingPlace

JOIN = """
import os, sys, torch
from service.config import ParallelConfig
from service.distributed.process_groups import join_ranks, open_store
rank, meeting_point = int(sys.argv[1]), int(sys.argv[2])
store = open_store(None, f"/proc/self/fd/{meeting_point}", 2)
parallel, stage = join_ranks(rank, ParallelConfig(2), store, torch.device("cpu"))
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


@pytest.mark.parametrize("config", [ParallelConfig(1, 2, 2), ParallelConfig(2, 4, 2), ParallelConfig(2, 6, 3)])
def test_hosts_have_equal_stages_in_their_order_whole_and_the_head_the_last_ones(config: ParallelConfig):
    hosts = [config.ranks_of(node) for node in range(config.num_nodes)]
    assert sorted(rank for ranks in hosts for rank in ranks) == list(range(config.num_ranks))
    assert {len(ranks) for ranks in hosts} == {config.num_ranks // config.num_nodes}
    stages = [sorted({config.stage_of(rank) for rank in ranks}) for ranks in reversed(hosts)]
    assert [stage for of_host in stages for stage in of_host] == list(range(config.num_stages))
    assert hosts[0][0] == 0


def test_ranks_meet_in_a_store_that_only_this_host_reaches():
    store = serve_store()
    of_rank = open_store(MeetingPlace(store.port, "lo"), "", 2)
    store.set("key", "value")
    assert of_rank.get("key") == b"value"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)
