from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from service.finetune.lora_parameters import LoraParameters, first_state, state_of_adapter
from service.finetune.training_state import ParameterLayout
from service.lora.adapter_folder import AdapterSite, AdapterWeights, SiteWeights

LAYOUT = ParameterLayout({"q": AdapterSite(8, 6), "k": AdapterSite(8, 4), "o": AdapterSite(6, 8)}, rank=3)


def test_the_first_state_is_pefts():
    state = first_state(LAYOUT, seed=5)
    for a, b in state.matrices().values():
        assert not b.any()
        bound = 1 / math.sqrt(a.shape[1])
        assert 0.5 * bound < a.abs().max() <= bound
    expected = torch.empty(3, 8)
    nn.init.kaiming_uniform_(expected, a=math.sqrt(5), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(state.matrices()["q"].a, expected)
    assert torch.equal(first_state(LAYOUT, seed=5).parameters, state.parameters)
    assert not torch.equal(first_state(LAYOUT, seed=6).parameters, state.parameters)


def test_parts_of_a_linear_are_views_of_one_tensor():
    state = first_state(LAYOUT, seed=0)
    parameters = LoraParameters(state, torch.bfloat16, torch.device("cpu"))
    parts, a, a_gradient = parameters.parts_of(["q", "other", "k"], [6, 5, 4])
    assert [part.columns for part in parts] == [slice(0, 6), slice(11, 15)]
    matrices = state.matrices()
    assert torch.equal(a, torch.cat((matrices["q"].a, matrices["k"].a)).bfloat16())
    a_gradient += 1
    parts[1].gradients.b.add_(2)
    assert parameters.gradient.sum() == a.numel() + 2 * 4 * 3
    assert parameters.parts_of(["other"], [5]).parts == []

    parameters.values += 1
    parameters.renew_computed()
    assert torch.equal(parameters.computed, parameters.values.bfloat16())
    assert not torch.equal(parameters.values, state.parameters), "the state stays as it was"


def test_to_go_on_from_an_adapter_is_to_begin_with_what_it_adds():
    a, b = torch.randn(2, 8), torch.randn(4, 2)
    state = state_of_adapter(LAYOUT, AdapterWeights({"k": SiteWeights(a, b, 0.5)}, "digest"), scale=2.0, seed=0)
    added = 2.0 * state.matrices()["k"].b @ state.matrices()["k"].a
    torch.testing.assert_close(added, 0.5 * b @ a)
    assert not state.matrices()["q"].b.any()


def test_an_adapter_that_does_not_fit_is_refused():
    site = SiteWeights(torch.ones(4, 8), torch.ones(4, 4), 1.0)
    with pytest.raises(ValueError, match="rank: the adapter has rank 4, more than 3"):
        state_of_adapter(LAYOUT, AdapterWeights({"k": site}, "digest"), 1.0, 0)
    with pytest.raises(ValueError, match="targets: the adapter also changes up"):
        state_of_adapter(LAYOUT, AdapterWeights({"up": site}, "digest"), 1.0, 0)
