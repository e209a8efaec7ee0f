from __future__ import annotations

import pytest
import torch

from service.runner.host_blocks import PlainHostBlocks
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.kv_transfer import KvTransfer
from service.runner.launched_iteration import LaunchedIteration, Outputs
from tests.runner.faulty_ids import FaultyIds


def test_a_fault_of_the_device_is_told_by_who_waits_for_the_result():
    storage = KvStorage(KvLayout(1, 1, 8, 4, torch.float32), 2, torch.device("cpu"))
    transfer = KvTransfer(storage, PlainHostBlocks(storage.layout, 0, pinned=False))
    launched = LaunchedIteration(Outputs(FaultyIds()), transfer, awaits_transfer=False)
    assert launched.is_done()
    with pytest.raises(RuntimeError, match="illegal"):
        launched.wait()
