from __future__ import annotations

import numpy as np
import pytest
import torch

from service.runner.staging import to_device


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_values_and_dtype_arrive(dtype):
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    tensor = to_device(array, torch.device("cpu"))
    assert tensor.numpy().dtype == dtype
    assert tensor.tolist() == array.tolist()
