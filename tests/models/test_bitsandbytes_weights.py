from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from service.errors import ModelLoadError
from service.models import bitsandbytes_weights
from service.models.bitsandbytes_weights import DequantizedTensor, plain_tensors
from service.models.checkpoint_file import OpenFiles, read_header
from tests.models.bitsandbytes_checkpoints import as_bytes, of_4_bits, of_8_bits

CPU = torch.device("cpu")
STATE = "x.weight.quant_state.bitsandbytes__nf4"
WAYS = {
    "nf4": of_4_bits("nf4"),
    "nf4 of small blocks, nested": of_4_bits("nf4", 32, nested=True, dtype=torch.float16),
    "fp4 of large blocks": of_4_bits("fp4", 4096, dtype=torch.float32),
    "int8": of_8_bits,
}


def stored(quantize, shape=(24, 40)):
    """A linear's tensors, by their names in a checkpoint, and what they stand for."""
    torch.manual_seed(0)
    written, stands_for = quantize(torch.randn(shape))
    return {f"x.{name}": tensor for name, tensor in written.items()}, stands_for


def read(folder, tensors):
    """(the plain tensors, how others are read)"""
    save_file(tensors, folder / "it.safetensors")
    files = OpenFiles()
    return plain_tensors({entry.name: entry for entry in read_header(folder / "it.safetensors")}, files.read), files


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(24, 40), (17, 33), (1, 1), (3, 64)], ids=str)
@pytest.mark.parametrize("part", [4096, 1 << 20])
def test_a_weight_is_what_its_tensors_stand_for(way, shape, part, tmp_path, monkeypatch):
    """Exactly; blocks go on from row to row, and the last one may be shorter."""
    monkeypatch.setattr(bitsandbytes_weights, "_PART", part)
    shape = shape if part > 4096 else (shape[0] * 130, shape[1])
    tensors, stands_for = stored(WAYS[way], shape)
    plain, files = read(tmp_path, tensors | {"x.bias": torch.ones(3)})
    assert set(plain) == {"x.weight", "x.bias"}
    made = plain["x.weight"]
    assert isinstance(made, DequantizedTensor) and made.shape == shape
    got = made.dequantized(tensors["x.weight"], files.read, CPU)
    assert torch.equal(got.float(), stands_for)
    assert {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[got.dtype] == made.dtype


def test_what_is_plain_stays_as_it_is(tmp_path):
    tensors = {"x.weight": torch.ones(2, 2), "x.absmax": torch.ones(1)}
    plain, _ = read(tmp_path, tensors)
    assert set(plain) == set(tensors) and not any(isinstance(each, DequantizedTensor) for each in plain.values())


def changed(**changes):
    """Of the state."""

    def change(tensors):
        state = json.loads(bytes(tensors[STATE].tolist()))
        tensors[STATE] = as_bytes({**state, **changes})

    return change


def replaced(name, tensor):
    def change(tensors):
        tensors[name] = tensor

    return change


def raw(text):
    return replaced(STATE, torch.tensor(list(text), dtype=torch.uint8))


def without(name):
    return lambda tensors: tensors.pop(name)


FAULTS_OF_4_BITS = [
    (without("x.weight"), r"x\.weight: is missing, although x\.weight\.quant_state\.bitsandbytes__nf4 is there"),
    (without("x.weight.absmax"), r"x\.weight\.absmax: is missing"),
    (without("x.weight.quant_map"), r"x\.weight\.quant_map: is missing"),
    (without("x.weight.nested_absmax"), r"x\.weight\.nested_absmax: is missing"),
    (replaced("x.weight.absmax", torch.ones(15, dtype=torch.float32)), r"absmax: F32 \(15,\) instead of U8 \(15,\)"),
    (replaced("x.weight.absmax", torch.ones(14, dtype=torch.uint8)), r"absmax: U8 \(14,\) instead of U8 \(15,\)"),
    (replaced("x.weight.nested_absmax", torch.ones(2)), r"nested_absmax: F32 \(2,\) instead of .*F32 \(1,\)"),
    (replaced("x.weight.nested_quant_map", torch.ones(16)), r"nested_quant_map: F32 \(16,\) .* \(256,\)"),
    (replaced("x.weight.quant_map", torch.ones(16)), r"quant_map: is not the table of nf4"),
    (replaced("x.weight.quant_map", torch.full((16,), float("nan"))), r"quant_map: is not the table of nf4"),
    (
        replaced("x.weight", torch.ones(1, 480, dtype=torch.uint8)),
        r"x\.weight: U8 \(1, 480\) does not hold the 480 bytes",
    ),
    (
        replaced("x.weight", torch.ones(479, 1, dtype=torch.uint8)),
        r"x\.weight: U8 \(479, 1\) does not hold the 480 bytes",
    ),
    (
        replaced("x.weight", torch.ones(480, 1, dtype=torch.int64)),
        r"x\.weight: I64 \(480, 1\) does not hold the 480 bytes",
    ),
    (replaced("x.SCB", torch.ones(24)), r"x\.weight: .* is not an int8 matrix|is quantized in a second way"),
    (
        replaced("x.weight.quant_state.bitsandbytes__af4", torch.ones(2).byte()),
        r"in a second way|type af4 are not supported",
    ),
    (changed(shape=[24, 41]), r"x\.weight: U8 \(480, 1\) does not hold the 492 bytes of 4-bit .* \[24, 41\]"),
    (changed(shape=[10**30, 10**30]), r"x\.weight: U8 \(480, 1\) does not hold the 5000000"),
    (changed(shape=[-24, -40]), r"bitsandbytes__nf4: shape \[-24, -40\] is not the shape of a matrix"),
    (changed(shape=[960]), r"bitsandbytes__nf4: shape \[960\] is not the shape of a matrix"),
    (changed(shape=None), "shape None is not the shape of a matrix"),
    (changed(blocksize=0), "blocksize 0 is not a power of two from 32 to 4096"),
    (changed(blocksize=10**40), "blocksize 1000000.* is not a power of two"),
    (changed(blocksize=64.0), "blocksize 64.0 is not a power of two"),
    (changed(blocksize=[64]), r"blocksize \[64\] is not a power of two"),
    (changed(nested_blocksize=10**15), "nested_blocksize 1000000000000000 is not a power of two"),
    (changed(nested_offset=None), "nested_offset None is not a number"),
    (changed(nested_offset=float("inf")), "nested_offset inf is not a number"),
    (changed(nested_offset=float("nan")), "nested_offset nan is not a number"),
    (changed(nested_offset=10**400), "nested_offset 1000000.* is not a number"),
    (changed(nested_dtype="float16"), "nested_dtype 'float16' is not float32"),
    (changed(dtype="int8"), "dtype 'int8' is not one of float32, float16, bfloat16"),
    (changed(dtype=["float32"]), r"dtype \['float32'\] is not one of"),
    (raw(b"{"), "bitsandbytes__nf4: is not JSON"),
    (raw(b"\xff\xfe"), "bitsandbytes__nf4: is not JSON"),
    (raw(b"[" * 4096), "bitsandbytes__nf4: is not JSON"),
    (raw(b"[]"), "bitsandbytes__nf4: is not a JSON object"),
    (raw(b" " * 5000), r"bitsandbytes__nf4: U8 \(5000,\) is not JSON of at most 4096 bytes"),
    (replaced(STATE, torch.ones(40)), r"bitsandbytes__nf4: F32 \(40,\) is not JSON of at most"),
]


@pytest.mark.parametrize(("change", "named"), FAULTS_OF_4_BITS, ids=[named[-40:] for _, named in FAULTS_OF_4_BITS])
def test_what_does_not_fit_together_is_refused_by_the_tensors_name(change, named, tmp_path):
    tensors, _ = stored(of_4_bits("nf4", nested=True))
    change(tensors)
    with pytest.raises(ModelLoadError, match=named) as refused:
        read(tmp_path, tensors)
    assert len(str(refused.value)) < 400


FAULTS_OF_8_BITS = [
    (without("x.weight"), r"x\.weight: is missing, although x\.SCB is there"),
    (replaced("x.weight", torch.ones(24, 40)), r"x\.weight: F32 \(24, 40\) is not an int8 matrix, which x\.SCB is"),
    (replaced("x.weight", torch.ones(24, dtype=torch.int8)), r"x\.weight: I8 \(24,\) is not an int8 matrix"),
    (replaced("x.SCB", torch.ones(23)), r"x\.SCB: F32 \(23,\) instead of .* \(24,\)"),
    (replaced("x.weight_format", torch.tensor(2, dtype=torch.uint8)), r"weight_format: layout 2 is not supported"),
    (replaced("x.weight_format", torch.ones(2)), r"x\.weight_format: F32 \(2,\) instead of U8 \(\)"),
]


@pytest.mark.parametrize(("change", "named"), FAULTS_OF_8_BITS, ids=[named[-40:] for _, named in FAULTS_OF_8_BITS])
def test_so_is_what_does_not_fit_of_8_bits(change, named, tmp_path):
    tensors, _ = stored(of_8_bits)
    change(tensors)
    with pytest.raises(ModelLoadError, match=named):
        read(tmp_path, tensors)


def test_older_files_of_8_bits_do_not_name_their_order(tmp_path):
    tensors, stands_for = stored(of_8_bits)
    plain, files = read(tmp_path, {name: tensor for name, tensor in tensors.items() if name != "x.weight_format"})
    made = plain["x.weight"]
    assert isinstance(made, DequantizedTensor)
    assert torch.equal(made.dequantized(tensors["x.weight"], files.read, CPU), stands_for)


def test_a_table_may_have_been_rounded(tmp_path):
    """It is not what is multiplied by."""
    tensors, stands_for = stored(of_4_bits("nf4"))
    plain, files = read(tmp_path, tensors | {"x.weight.quant_map": tensors["x.weight.quant_map"].bfloat16()})
    made = plain["x.weight"]
    assert isinstance(made, DequantizedTensor)
    assert torch.equal(made.dequantized(tensors["x.weight"], files.read, CPU).float(), stands_for)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_dequantizes_to_the_same_bits(way, tmp_path):
    tensors, stands_for = stored(WAYS[way], (3120, 40))
    plain, files = read(tmp_path, tensors)
    made = plain["x.weight"]
    assert isinstance(made, DequantizedTensor)
    got = made.dequantized(tensors["x.weight"], files.read, torch.device("cuda"))
    assert got.is_cuda and torch.equal(got.cpu().float(), stands_for)
