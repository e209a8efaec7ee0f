from __future__ import annotations

import pytest
import torch

from loadtest.bench.gpu_ranks import run_gpu_ranks


def test_without_enough_gpus_nothing_starts():
    too_many = torch.cuda.device_count() + 1
    with pytest.raises(SystemExit, match=rf"{too_many} GPUs are needed, {too_many - 1} are there"):
        run_gpu_ranks(too_many, print)
