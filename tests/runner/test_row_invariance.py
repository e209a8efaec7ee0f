from __future__ import annotations

import pytest
import torch

from kernels.cpu_loops import cpu_loops
from service.layers.linear_method import PackedMethod
from service.layers.packed_weight import WeightForm
from service.runner.choices import weight_forms
from service.runner.row_invariance import RowInvariance
from tests.models.checkpoints import llama, opt, qwen3
from tests.runner.loading import load

CPU = torch.device("cpu")


def model_of(folder, dtype="bfloat16"):
    return load(folder, dtype=dtype).runner.replays._model


@pytest.fixture
def two_forms(monkeypatch):
    if cpu_loops() is None:
        pytest.skip("this machine runs no compiled loops")
    monkeypatch.setattr(weight_forms, "_fastest", lambda both, timer: WeightForm.BOTH)


@pytest.mark.usefixtures("two_forms")
def test_a_model_of_loops_alone_is_computed_at_once_by_the_loops_alone(tmp_path):
    model = model_of(qwen3(tmp_path, head_dim=32, vocab_size=320))
    before = [projection.method for projection in model.projections]
    steps = RowInvariance(model, CPU, 512)
    for _ in range(2):
        steps.want(True)
        assert steps.takes_all_as_prompts and not steps.takes_one_by_one
        methods = [projection.method for projection in model.projections]
        assert all(isinstance(method, PackedMethod) and method.choice is WeightForm.LOOPS for method in methods)
        steps.want(False)
        assert not steps.takes_all_as_prompts and not steps.takes_one_by_one
        assert [projection.method for projection in model.projections] == before


@pytest.mark.parametrize(
    ("save", "dtype"),
    [
        (lambda folder: llama(folder, head_dim=32, vocab_size=320), "float32"),
        (lambda folder: llama(folder, head_dim=24, vocab_size=320), "bfloat16"),
        (lambda folder: llama(folder, head_dim=32, vocab_size=301), "bfloat16"),
        (lambda folder: llama(folder, head_dim=32, vocab_size=320, hidden_act="gelu"), "bfloat16"),
        (opt, "bfloat16"),
    ],
    ids=["wide numbers", "heads", "outputs", "activation", "family"],
)
def test_any_other_is_computed_one_by_one(save, dtype, tmp_path):
    model = model_of(save(tmp_path), dtype)
    methods = [type(projection.method) for projection in model.projections]
    steps = RowInvariance(model, CPU, 512)
    steps.want(True)
    assert steps.takes_one_by_one and not steps.takes_all_as_prompts
    assert [type(projection.method) for projection in model.projections] == methods


@pytest.mark.usefixtures("two_forms")
def test_the_loaded_model_says_whether_it_is_batched(tmp_path):
    assert load(qwen3(tmp_path / "narrow", head_dim=32, vocab_size=320), dtype="bfloat16").batches_deterministic
    assert not load(qwen3(tmp_path / "wide", head_dim=32, vocab_size=320)).batches_deterministic


@pytest.mark.usefixtures("two_forms")
def test_where_the_cache_has_other_numbers_than_the_model_it_is_one_by_one(tmp_path):
    model = model_of(qwen3(tmp_path, head_dim=32, vocab_size=320))
    assert RowInvariance(model, CPU, 512).can_be_at_once
    assert not RowInvariance(model, CPU, 512, plain_cache=False).can_be_at_once
