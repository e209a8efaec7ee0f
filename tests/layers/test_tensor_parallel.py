from __future__ import annotations

import torch

from kernels.rms_norm import add_rms_norm_reference
from service.layers.tensor_parallel import ALONE


def test_alone_nothing_is_computed():
    x = torch.randn(3, 4)
    assert ALONE.all_reduce(x) is x
    weight, residual = torch.ones(4), torch.randn(3, 4)
    want = add_rms_norm_reference(x, residual, weight, 1e-5)
    torch.testing.assert_close(ALONE.all_reduce_add_norm(x, residual.clone(), weight, 1e-5), want)
    assert ALONE.all_gather(x).data_ptr() == x.data_ptr()
    assert (ALONE.rank, ALONE.size, ALONE.least(7), ALONE.of_first("as it is")) == (0, 1, 7, "as it is")
