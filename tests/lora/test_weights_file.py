from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.lora.adapter_folder import AdapterWeights, SiteWeights
from service.lora.weights_file import read_weights, write_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_read_to_the_bit(tmp_path: Path, dtype: torch.dtype):
    sites = {
        name: SiteWeights(torch.randn(rank, 7).to(dtype), torch.randn(5, rank).to(dtype), scale)
        for name, rank, scale in (("model.layers.0.q", 1, 0.1), ("model.layers.1.digest", 4, 2**0.5 * 1e-9))
    }
    file = tmp_path / "weights"
    with file.open("wb") as opened:
        write_weights(opened, AdapterWeights(sites, "ab12"))
    read = read_weights(file)
    assert read.digest == "ab12"
    assert read.sites.keys() == sites.keys()
    for name, site in read.sites.items():
        assert site.scale == sites[name].scale
        assert torch.equal(site.a, sites[name].a)
        assert torch.equal(site.b, sites[name].b)
