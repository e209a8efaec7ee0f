"""Warps of 32 threads that run the little assembly of kernels/register_product.py on a CPU: with a row of 16 words a
register of four neighbours, as Triton gives them out. `in_the_interpreter` has Triton's interpreter do so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

Registers = np.ndarray
"""[W, 32] uint32: of each thread of each warp."""
LANES = np.arange(32)


def run(assembly: str, inputs: Sequence[np.ndarray], num_outputs: int) -> list[np.ndarray]:
    """inputs [8 W, 16] uint32 each, of W warps with eight rows each: thread t with their row t // 4 and words 4 (t % 4)
    to 4 (t % 4) + 3; outputs likewise."""
    registers: dict[str, Registers] = {}
    for place, tensor in enumerate(inputs):
        by_warps = tensor.astype(np.uint32).reshape(-1, 8, 16)
        for i in range(4):
            registers[f"${4 * (num_outputs + place) + i}"] = by_warps[:, LANES // 4, LANES % 4 * 4 + i]
    _execute_all(assembly, registers)
    outputs = []
    for place in range(num_outputs):
        output = np.zeros((len(by_warps), 8, 16), np.uint32)
        for i in range(4):
            output[:, LANES // 4, LANES % 4 * 4 + i] = registers[f"${4 * place + i}"]
        outputs.append(output.reshape(-1, 16))
    return outputs


def run_each(assembly: str, inputs: Sequence[np.ndarray], num_outputs: int) -> list[np.ndarray]:
    """Of assembly with one register an operand: inputs and outputs of one shape, uint32 each, of as many elements as a
    warp has threads or some times as many."""
    registers = {f"${num_outputs + i}": each.astype(np.uint32).reshape(-1, 32) for i, each in enumerate(inputs)}
    _execute_all(assembly, registers)
    return [registers[f"${i}"].reshape(inputs[0].shape) for i in range(num_outputs)]


def as_told(registers: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """[N, W / 2] of two bf16 numbers each -> [N, W], as Triton takes the outputs of assembly with two elements a
    register, where a thread's second word is four further than the first."""
    tensors = []
    for each in registers:
        numbers = torch.tensor(each.view(np.int16)).view(torch.bfloat16).double().unflatten(1, (-1, 4, 2))
        tensors.append(numbers.transpose(2, 3).flatten(1))
    return tensors


@dataclass(frozen=True)
class _Results:
    """As Triton's operation of inline assembly has them."""

    handles: list[Any]

    def get_result(self, i: int) -> Any:
        return self.handles[i]


def in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have inline assembly run there, on tensors of eight rows a warp, which it does not by itself."""
    from triton.language import float32
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_inline_asm(
        _: Any, assembly: str, constraints: str, values: list[Any], types: list[Any], is_pure: bool, pack: int
    ) -> _Results:
        words = [np.ascontiguousarray(value.data).view(np.uint32) for value in values]
        handles = []
        for out, dtype in zip(run(assembly, words, len(types)), types, strict=True):
            scalar = getattr(dtype, "scalar", dtype)
            handles.append(TensorHandle(out.view(np.float32 if scalar == float32 else np.int32), scalar))
        return _Results(handles)

    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm, raising=False)


def _execute_all(assembly: str, registers: dict[str, Registers]) -> None:
    """In all warps at once; afterwards, registers hold what it leaves."""
    for statement in re.sub(r"[{}]\s*\n|\.reg[^;]*;", "", assembly).split(";"):
        if statement.strip():
            _execute(statement.strip(), registers)


def _execute(statement: str, registers: dict[str, Registers]) -> None:
    name, operands = statement.split(None, 1)
    if name.startswith("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"):
        d, a, b, c = ([each.strip() for each in group.split(",")] for group in re.findall(r"{([^}]*)}", operands))
        sums = _mma(*([registers[each] for each in group] for group in (a, b, c)))
        registers.update(zip(d, sums, strict=True))
        return
    target, *sources = [each.strip() for each in operands.split(",")]
    values = [registers[each] if each in registers else _constant(each) for each in sources]
    if name.startswith("mov"):
        result = values[0]
    elif name in ("shl.b32", "shr.b32"):
        result = values[0] << values[1] if name == "shl.b32" else values[0] >> values[1]
    elif name == "mul.lo.u32":
        result = values[0] * values[1]
    elif name == "and.b32":
        result = values[0] & values[1]
    elif name == "lop3.b32":
        assert sources[3] == "0xea"
        result = (values[0] & values[1]) | values[2]
    elif name == "prmt.b32":
        numbers = values[0].astype(np.uint64) | values[1].astype(np.uint64) << np.uint64(32)
        picks = [int(sources[2], 16) >> 4 * i & 7 for i in range(4)]
        result = sum(
            ((numbers >> np.uint64(8 * pick)) & np.uint64(255)) << np.uint64(8 * i) for i, pick in enumerate(picks)
        )
    elif name == "fma.rn.bf16x2":
        halves = [_wide(x) * _wide(y) + _wide(z) for x, y, z in [[(v >> s) & 0xFFFF for v in values] for s in (0, 16)]]
        assert all((half.view(np.uint32) & 0xFFFF == 0).all() for half in halves), "exact here"
        result = halves[0].view(np.uint32) >> 16 | halves[1].view(np.uint32)
    else:
        raise AssertionError(name)
    shape = next(iter(registers.values())).shape
    registers[target] = np.broadcast_to(np.asarray(result, np.uint32), shape)


def _constant(text: str) -> np.ndarray:
    return np.uint32(int(text[2:], 16) if text.startswith("0f") else int(text, 0))


def _wide(halves: np.ndarray) -> np.ndarray:
    return (np.asarray(halves, np.uint32) << 16).astype(np.uint32).view(np.float32)


def _mma(a: list[Registers], b: list[Registers], c: list[Registers]) -> list[Registers]:
    warps = a[0].shape[:-1]
    left, right, out = np.zeros((*warps, 16, 16)), np.zeros((*warps, 16, 8)), np.zeros((*warps, 16, 8), np.float32)
    group, place = LANES // 4, LANES % 4
    for i in range(4):
        for half in range(2):
            left[..., group + i % 2 * 8, place * 2 + i // 2 * 8 + half] = _wide(a[i] >> 16 * half & 0xFFFF)
            out[..., group + i // 2 * 8, place * 2 + i % 2] = c[i].view(np.float32)
    for i in range(2):
        for half in range(2):
            right[..., place * 2 + i * 8 + half, group] = _wide(b[i] >> 16 * half & 0xFFFF)
    out = (out + left @ right).astype(np.float32)
    return [out[..., group + i // 2 * 8, place * 2 + i % 2].view(np.uint32) for i in range(4)]
