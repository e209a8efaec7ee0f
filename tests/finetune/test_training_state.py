from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from service.finetune.training_state import ParameterLayout
from service.lora.adapter_folder import AdapterSite

sizes = st.integers(1, 9)


@given(
    rank=st.integers(1, 5),
    sites=st.dictionaries(st.text(min_size=1), st.builds(AdapterSite, sizes, sizes), min_size=1, max_size=6),
)
def test_every_parameter_is_one_matrix_element(rank: int, sites: dict[str, AdapterSite]):
    layout = ParameterLayout(sites, rank)
    parameters = torch.zeros(layout.num_parameters)
    for name, (a, b) in layout.matrices(parameters).items():
        assert a.shape == (rank, sites[name].in_features)
        assert b.shape == (sites[name].out_features, rank)
        a.add_(1)
        b.add_(1)
    assert torch.equal(parameters, torch.ones_like(parameters))


def test_the_as_of_parts_of_one_linear_are_one_matrix():
    layout = ParameterLayout({"q": AdapterSite(8, 8), "k": AdapterSite(8, 4), "v": AdapterSite(8, 4)}, rank=2)
    parameters = torch.arange(layout.num_parameters, dtype=torch.float32)
    parts = layout.matrices(parameters)
    assert torch.equal(torch.cat([parts[name].a for name in "qkv"]), parameters[: 3 * 2 * 8].view(6, 8))
