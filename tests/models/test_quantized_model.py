from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from kernels.quantized_weight import FP8
from service.errors import ModelLoadError
from service.models.dummy_weights import fill_with_dummy_weights
from service.models.model_config import load_model_config
from service.models.quantization import FP8_AT_LOAD, Fp8Scheme, Int4Scheme, Int8Scheme, Quantization
from service.models.quantized_model import store_quantized
from service.models.registry import build_model
from service.models.weight_loader import load_weights
from tests.models.checkpoints import gpt2, llama, mixtral
from tests.models.quantized_checkpoints import FORMATS, quantized

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Parts of whole blocks and parts that end within one: 16 rows of 32, and key and value heads of 8 rows."""
    return llama(tmp_path_factory.mktemp("models") / "llama", num_key_value_heads=1)


def loaded(folder, *, dequantized, quantization=None):
    config = load_model_config(folder, quantization)
    model = build_model(config)
    assert config.quantization is not None
    unread = store_quantized(model, config.quantization, dequantized=dequantized)
    model.materialize(torch.float32, CPU)
    load_weights(model, folder, unread=unread)
    model.finish_reading(torch.float32)
    return model


def plain_model(folder):
    model = build_model(load_model_config(folder))
    model.materialize(torch.float32, CPU)
    load_weights(model, folder)
    return model


@pytest.mark.each_once
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dequantized", [False, True])
def test_every_format_is_read_as_what_it_stands_for(plain, kind, dequantized, tmp_path):
    folder = plain.parent / f"{plain.name}-{kind}"
    if not folder.exists():
        quantized(plain, kind)
    model = loaded(folder, dequantized=dequantized)
    wanted = plain_model(folder / "plain")
    scheme = load_model_config(folder).quantization.groups[0][1]
    form = {Fp8Scheme: "fp8", Int4Scheme: "int4", Int8Scheme: "int8"}[type(scheme)]
    for got, want in zip(model.projections, wanted.projections, strict=True):
        held = got.held_weight
        is_quantized = not isinstance(held, torch.Tensor)
        assert is_quantized is (not dequantized and "head" not in type(got).__name__.lower())
        assert got.shape_name == f"{want.shape_name}-{form}" if is_quantized else want.shape_name
        values = held.dequantized() if is_quantized else held
        torch.testing.assert_close(values, want.plain_weight.data, rtol=1e-6, atol=1e-7)
    assert model.multiplies_in_registers is not dequantized and not wanted.multiplies_in_registers
    if not dequantized:
        sizes = [sum(each.held_weight.nbytes for each in one.projections) for one in (model, wanted)]
        assert sizes[0] < sizes[1] / 1.5


@pytest.mark.parametrize("save", [llama, gpt2])
@pytest.mark.parametrize("dequantized", [False, True])
def test_plain_weights_are_quantized_while_they_are_read(save, dequantized, tmp_path):
    folder = save(tmp_path / "it")
    wanted = plain_model(folder)
    model = loaded(folder, dequantized=dequantized, quantization="fp8")
    for got, want in zip(model.projections, wanted.projections, strict=True):
        held, exact = got.held_weight, want.plain_weight.data
        values = held if isinstance(held, torch.Tensor) else held.dequantized()
        is_head = "head" in type(got).__name__.lower()
        assert torch.equal(values, exact) is is_head
        assert (got.held_weight.nbytes < exact.nbytes / 3) is (not dequantized and not is_head)
        largest = exact.abs().amax(1, keepdim=True)
        assert ((values - exact).abs() <= exact.abs() / 16 + largest * 2**-18 + 1e-7).all()


@pytest.mark.parametrize("kind", ["blocks", "awq", "packed-zeros"])
def test_dummy_weights_of_a_quantized_checkpoint_are_as_large_as_plain_ones(plain, kind):
    folder = plain.parent / f"{plain.name}-{kind}"
    if not folder.exists():
        quantized(plain, kind)
    config = load_model_config(folder)
    model = build_model(config)
    store_quantized(model, config.quantization, dequantized=False)
    model.materialize(torch.float32, CPU)
    fill_with_dummy_weights(model, 0)
    model.finish_reading(torch.float32)
    for projection in model.projections:
        held = projection.held_weight
        values = held if isinstance(held, torch.Tensor) else held.dequantized()
        assert values.isfinite().all() and 0.01 < values.std() < 0.05


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_how_much_memory_it_takes_is_known_before(quantization, plain):
    """Of the plain model with head and embedding: as many numbers; of fp8 on a GPU the blocks' take a byte."""
    config = load_model_config(plain, quantization)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    takes = {}
    for device in (cpu, gpu):
        model = build_model(config)
        if config.quantization is not None:
            store_quantized(model, config.quantization, dequantized=device is cpu)
        takes[device] = model.weights_bytes(torch.bfloat16, device)
    numbers = sum(tensor.numel() for tensor in load_file(plain / "model.safetensors").values())
    linears = sum(t.numel() for name, t in load_file(plain / "model.safetensors").items() if "_proj" in name)
    if quantization is None:
        assert takes == {cpu: 2 * numbers, gpu: 2 * numbers}
    else:
        assert 2 * numbers - linears < takes[gpu] < 2 * numbers - 0.9 * linears
        assert takes[cpu] > 2 * numbers


def test_parts_of_one_matrix_are_quantized_alike(tmp_path):
    model = build_model(load_model_config(llama(tmp_path / "it")))
    quantization = Quantization("some", ((("Linear",), Fp8Scheme("channel")),), ("k_proj",))
    with pytest.raises(ModelLoadError, match=r"treats model\.layers\.0\.self_attn\.q_proj and .*k_proj differently"):
        store_quantized(model, quantization, dequantized=False)


@pytest.mark.parametrize(
    ("scheme", "named"),
    [
        (Int4Scheme("awq", 128, has_zeros=True), "64 input features are not a whole number of groups of 128"),
        (Fp8Scheme("block", (128, 128)), "q_proj: 64 input features are not a multiple of the block size 128"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_named(scheme, named, tmp_path):
    model = build_model(load_model_config(llama(tmp_path / "it")))
    with pytest.raises(ModelLoadError, match=named):
        store_quantized(model, Quantization("some", ((("Linear",), scheme),)), dequantized=False)


def test_a_tensor_of_another_type_is_named(plain, tmp_path):
    """A plain checkpoint whose config says that it is quantized."""
    config = load_model_config(plain)
    model = build_model(config)
    store_quantized(model, Quantization("some", ((("Linear",), Fp8Scheme("channel")),), ("lm_head",)), dequantized=True)
    model.materialize(torch.float32, CPU)
    with pytest.raises(ModelLoadError, match=r"missing: .*weight_scale.*another type: .*weight F32 instead of F8_E4M3"):
        load_weights(model, plain)


def test_a_head_of_its_own_may_be_quantized_a_tied_one_stays(tmp_path):
    every = Quantization("some", ((("Linear",), Fp8Scheme("load")),))
    for tied in (False, True):
        model = build_model(load_model_config(llama(tmp_path / f"tied-{tied}", tie_word_embeddings=tied)))
        store_quantized(model, every, dequantized=False)
        assert [each.shape_name for each in model.projections][-1].endswith("-fp8") is not tied
    assert FP8_AT_LOAD.scheme_of("lm_head") is None


def test_only_what_the_format_brings_is_left_unread(plain):
    tensors = load_file(plain / "model.safetensors")
    model = build_model(load_model_config(plain))
    unread = store_quantized(model, FP8_AT_LOAD, dequantized=False)
    assert not unread & tensors.keys()
    assert "model.layers.1.self_attn.k_scale" in unread and "model.layers.0.mlp.up_proj.input_scale" in unread


def test_experts_get_eight_bits_at_load_and_the_router_stays(tmp_path):
    folder = mixtral(tmp_path)
    model, wanted = loaded(folder, dequantized=False, quantization="fp8"), plain_model(folder)
    for block in model.blocks:
        assert block.mlp.gate_up.dtype == block.mlp.down.dtype == FP8
        assert block.mlp.router.plain_weight.dtype == torch.float32
    model.fit_cpu(torch.float32)
    for block, exact in zip(model.blocks, wanted.blocks, strict=True):
        for name in ("gate_up", "down"):
            values = getattr(exact.mlp, name)
            torch.testing.assert_close(getattr(block.mlp, name), values, rtol=2**-4, atol=values.abs().max() / 2**9)
