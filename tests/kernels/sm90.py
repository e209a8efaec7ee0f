"""Compiles a kernel for sm_90 on a machine without a GPU, as one launch would compile it there."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {
    torch.bool: "i1",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.float8_e4m3fn: "fp8e4nv",
}


@dataclass(frozen=True)
class Launch:
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


class LaunchRecorder:
    """Stands in for a kernel: keeps what it would have been launched with."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.launches: list[Launch] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.launches.append(Launch(self._kernel, grid, args, options))


@dataclass(frozen=True)
class Compiled:
    """shared_bytes: what a program takes. stack_bytes: what a thread has in memory, spilled registers too."""

    ptx: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    cubin: Path

    @cached_property
    def spills_in_loops(self) -> int:
        """Instructions of loops that go to memory for want of registers."""
        return _spills_in_loops(self._sass) if self.stack_bytes else 0

    @property
    def waits_for_units(self) -> int:
        """Instructions that wait for matrix units which compute by themselves."""
        return self._sass.count("WARPGROUP.DEPBAR")

    @cached_property
    def _sass(self) -> str:
        """A third of a second."""
        return _cuobjdump("-sass", self.cubin)


def ptx_for_sm90(launch: Launch) -> str:
    """Of any kernel."""
    return str(_compile(launch).asm["ptx"])


def layouts_of_assembly(launch: Launch) -> set[str]:
    """How tensors lie over threads that inline assembly gets."""
    text = str(_compile(launch).asm["ttgir"])
    layouts = dict(re.findall(r"^(#\w+) = (#ttg.*)$", text, re.MULTILINE))
    names = re.findall(r"elementwise_inline_asm[^\n]*-> tensor<[^,>]*, (#\w+)>", text)
    return {layouts[name] for name in names}


def compile_for_sm90(launch: Launch, folder: Path) -> Compiled:
    """A kernel with matrix products."""
    compiled = _compile(launch)
    cubin = folder / f"{compiled.metadata.name}-{compiled.metadata.hash}.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", _cuobjdump("-res-usage", cubin))
    assert usage is not None
    registers, stack, local = map(int, usage.groups())
    return Compiled(compiled.asm["ptx"], registers, compiled.metadata.shared, stack + local, cubin)


def compile_to_ptx(launch: Launch) -> str:
    return str(_compile(launch).asm["ptx"])


def _compile(launch: Launch) -> Any:
    """Numbers and pointers that are multiples of 16 are taken for such, as by Triton's launcher."""
    parameters = launch.kernel.params
    given = dict(zip((p.name for p in parameters), launch.args, strict=False)) | launch.options
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(parameters):
        value = given.pop(parameter.name)
        if parameter.is_constexpr:
            signature[parameter.name], constants[(index,)] = "constexpr", value
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, TensorDescriptor | GluonTensorDescriptor):
            continue
        aligned = isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
        if aligned and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment):
            attributes[(index,)] = [["tt.divisibility", 16]]
    of_kernel = GluonASTSource if launch.kernel.is_gluon() else ASTSource
    source = of_kernel(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=given)


def _cuobjdump(what: str, cubin: Path) -> str:
    return subprocess.run([CUOBJDUMP, what, cubin], capture_output=True, text=True, check=True).stdout


def _spills_in_loops(sass: str) -> int:
    """A loop is what lies between a branch backwards and its target."""
    code = [
        (int(found[1], 16), found[2], found[3])
        for found in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z]\S*)([^;]*);", sass)
    ]
    assert any(name == "EXIT" for _, name, _ in code), "not what cuobjdump wrote so far"
    spilled = [address for address, name, _ in code if name.startswith(("LDL", "STL"))]
    targets = ((address, re.search(r"0x([0-9a-f]+)", rest)) for address, name, rest in code if name.startswith("BRA"))
    loops = [(int(target[1], 16), address) for address, target in targets if target and int(target[1], 16) < address]
    return sum(any(begin <= address <= end for begin, end in loops) for address in spilled)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    if isinstance(value, GluonTensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"
    return "fp32" if isinstance(value, float) else "i64" if abs(value) >= 2**31 else "i32"
