from __future__ import annotations

import pytest
import torch


def test_takes_head_dims_of_whole_vectors_only(loops):
    assert [d for d in (16, 32, 64, 80, 128) if loops.takes_head_dim(d)] == [32, 64, 128]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t | {"query": t["query"].float()},
        lambda t: t | {"query": torch.zeros(3, 32, 4, dtype=torch.bfloat16).transpose(1, 2)},
        lambda t: t | {"value_cache": t["value_cache"][::2]},
        lambda t: t | {"key_cache": t["key_cache"].transpose(1, 2), "value_cache": t["value_cache"].transpose(1, 2)},
        lambda t: t | {"out": t["out"][:2]},
    ],
    ids=["type", "heads apart", "caches unlike", "cells apart", "out unlike the query"],
)
def test_what_would_be_read_at_wrong_addresses_is_not_taken(spoil):
    from kernels.loops.paged_heads import check_heads

    heads, cache = torch.zeros(3, 4, 32, dtype=torch.bfloat16), torch.zeros(4, 5, 2, 32, dtype=torch.bfloat16)
    fitting = {"query": heads, "key_cache": cache, "value_cache": cache.clone(), "out": heads.clone()}
    check_heads(**fitting)
    with pytest.raises(AssertionError):
        check_heads(**spoil(fitting))
