"""Runs a Gluon kernel's Python on a CPU, warps of each kind as a thread: what there is instead of an interpreter.

Tensors are torch's, shared memory lies as the hardware has it (64 dims of all rows before the next 64), barriers count
arrivals and bytes by phases. Products are complete at once; so it tells whether places, phases and masks are right, not
whether a wait is missing that only the units need. A wait that takes too long is a deadlock, and an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

LONGEST_WAIT_S = 20.0
_DIMS = 64


class Tile(torch.Tensor):
    """A tensor as kernels have it: a number's bits may be taken for another's, and its layout is nobody's business."""

    @property
    def type(self):
        return SimpleNamespace(layout=None)

    def to(self, dtype, bitcast=False):
        return self.view(dtype) if bitcast else super().to(dtype)


def tile(tensor):
    return tensor.as_subclass(Tile)


class Pointer:
    def __init__(self, memory: torch.Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + offset)


def pointer_to(tensor: torch.Tensor) -> Pointer:
    """Its storage, from its first element on."""
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return Pointer(tensor.as_strided((reach,), (1,)))


@dataclass
class Barrier:
    """Of one element of a shared tensor."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    count: int = 0
    missing: int = 0
    bytes: int = 0
    phase: int = 0

    def arrive(self, arrivals: int = 0, expected: int = 0, come: int = 0) -> None:
        with self.changed:
            self.missing -= arrivals
            self.bytes += expected - come
            assert self.missing >= 0, "more arrivals than a phase has"
            if self.missing == 0 and self.bytes == 0:
                self.phase, self.missing = self.phase + 1, self.count
                self.changed.notify_all()

    def wait(self, phase: int) -> None:
        """Until a phase of that parity is complete."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase & 1 != phase, LONGEST_WAIT_S), "a deadlock"


class Barriers:
    def __init__(self, number: int) -> None:
        self.barriers = [Barrier() for _ in range(number)]

    def index(self, i: int) -> Barrier:
        return self.barriers[i]


class Shared:
    """[rows, dims], or some of them; `memory` as it lies: [..., parts of 64 dims, rows, 64]."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.dtype = memory.dtype
        *numbers, parts, rows, dims = memory.shape
        self.shape = [*numbers, rows, parts * dims]

    def index(self, i: int) -> Shared:
        return Shared(self.memory[i])

    def load(self, _layout: Any = None) -> torch.Tensor:
        return tile(self.memory.transpose(0, 1).flatten(1).clone())

    def store(self, value: torch.Tensor) -> None:
        self.memory.copy_(value.unflatten(1, (-1, self.memory.shape[-1])).transpose(0, 1))

    def permute(self, order: Sequence[int]) -> torch.Tensor:
        assert list(order) == [1, 0]
        return self.load().T

    @staticmethod
    def allocate(dtype: Any, shape: Sequence[int], _layout: Any) -> Any:
        if dtype is torch.int64:
            return Barriers(shape[0])
        number, rows, dims = shape
        return Shared(torch.full((number, dims // _DIMS, rows, _DIMS), float("nan"), dtype=dtype))


def reinterpret(memory: Shared, _dtype: Any, shape: Sequence[int], _layout: Any) -> Shared:
    number, rows, dims = shape
    return Shared(memory.memory.view(number, 1, rows, dims))


@dataclass(frozen=True)
class Descriptor:
    tensor: torch.Tensor
    block_shape: list[int]
    layout: Any = None

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def block_type(self) -> Any:
        return SimpleNamespace(nbytes=self.block_shape[0] * self.block_shape[1] * self.tensor.itemsize)


def copy_tile(desc: Descriptor, place: Sequence[int], barrier: Barrier, memory: Shared) -> None:
    (row, column), (rows, dims) = place, desc.block_shape
    memory.store(desc.tensor[row : row + rows, column : column + dims])
    barrier.arrive(come=desc.block_type.nbytes)


def _load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Any:
    if not isinstance(pointer.offset, torch.Tensor):
        return int(pointer.memory[pointer.offset])
    offset = pointer.offset if mask is None else torch.where(mask, pointer.offset, 0)
    values = pointer.memory[offset]
    return tile(values if mask is None else torch.where(mask, values, torch.tensor(other, dtype=values.dtype)))


def _store(pointer: Pointer, value: torch.Tensor, mask: torch.Tensor) -> None:
    there = mask.expand(value.shape)
    pointer.memory[pointer.offset[there]] = value[there]


def _mma(a: Any, b: Any, acc: torch.Tensor, use_acc: bool = True, is_async: bool = False) -> torch.Tensor:
    left, right = (x.load() if isinstance(x, Shared) else x for x in (a, b))
    product = left.float() @ right.float()
    return acc + product if use_acc else product


def _assembly(code: str, _constraints: str, args: Sequence[torch.Tensor], **_options: Any) -> torch.Tensor:
    if not code.startswith("cvt"):
        return args[0]
    dtype = torch.bfloat16 if "bf16" in code else torch.float16
    return tile(torch.stack([x.to(dtype) for x in args], -1).contiguous().view(torch.int32).squeeze(-1))


def _reduced(reduce: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis: int(reduce(x, axis)) if x.dim() == 1 else reduce(x, axis)


def _either(of_tensors: Callable[..., Any], of_numbers: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(a: Any, b: Any) -> Any:
        tensors = [x for x in (a, b) if isinstance(x, torch.Tensor)]
        if not tensors:
            return of_numbers(a, b)
        return of_tensors(*(x if isinstance(x, torch.Tensor) else torch.tensor(x).to(tensors[0].dtype) for x in (a, b)))

    return chosen


class _Program:
    """Numbers of the program that runs."""

    place: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()


def _specialize(functions: Sequence[tuple[Any, tuple[Any, ...]]], _warps: Any, _registers: Any) -> None:
    errors: list[BaseException] = []

    def run(function: Any, args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _anything(*_args: Any, **_options: Any) -> None:
    return None


GL = SimpleNamespace(
    bfloat16=torch.bfloat16,
    float16=torch.float16,
    float32=torch.float32,
    int16=torch.int16,
    int32=torch.int32,
    int64=torch.int64,
    constexpr=lambda value: value,
    program_id=lambda axis: _Program.place[axis],
    num_programs=lambda axis: _Program.grid[axis],
    static_range=range,
    arange=lambda start, stop, layout=None: tile(torch.arange(start, stop)),
    zeros=lambda shape, dtype, layout=None: tile(torch.zeros(shape, dtype=dtype)),
    full=lambda shape, value, dtype, layout=None: tile(torch.full(shape, value, dtype=dtype)),
    load=_load,
    store=_store,
    associative_scan=lambda x, axis, _: x.cumsum(axis),
    sum=_reduced(torch.sum),
    max=_reduced(torch.amax),
    maximum=_either(torch.maximum, max),
    minimum=_either(torch.minimum, min),
    where=torch.where,
    exp2=torch.exp2,
    expand_dims=torch.unsqueeze,
    reshape=lambda x, shape: x.reshape(shape),
    split=lambda x: (x[..., 0], x[..., 1]),
    join=lambda a, b: torch.stack((a, b), -1),
    convert_layout=lambda x, layout, assert_trivial=False: x,
    inline_asm_elementwise=_assembly,
    allocate_shared_memory=Shared.allocate,
    warp_specialize=_specialize,
    BlockedLayout=_anything,
    SliceLayout=_anything,
    NVMMADistributedLayout=_anything,
    DotOperandLayout=_anything,
)


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.missing = count


HOPPER = SimpleNamespace(
    mbarrier=SimpleNamespace(
        MBarrierLayout=_anything,
        init=_init,
        expect=lambda barrier, size: barrier.arrive(1, expected=size),
        arrive=lambda barrier, count=1: barrier.arrive(count),
        wait=lambda barrier, phase: barrier.wait(phase),
    ),
    fence_async_shared=_anything,
    warpgroup_mma=_mma,
    warpgroup_mma_wait=lambda _, deps: deps[0] if len(deps) == 1 else tuple(deps),
)


class Emulated:
    """Stands in for a kernel of `module`: runs when it is launched."""

    def __init__(self, module: ModuleType, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._function = getattr(module, kernel).fn
        for name, value in vars(module).copy().items():
            if name != kernel and hasattr(value, "fn") and hasattr(value, "params"):
                monkeypatch.setattr(module, name, value.fn)
            if isinstance(value, str) is False and hasattr(value, "value") and isinstance(value.value, str):
                monkeypatch.setattr(module, name, value.value)
        stand_ins = {
            "gl": SimpleNamespace(**vars(GL), NVMMASharedLayout=_anything),
            "hopper": HOPPER,
            "barrier": _anything,
            "copy_tile": copy_tile,
            "reinterpret": reinterpret,
            "GluonTensorDescriptor": SimpleNamespace(from_tensor=Descriptor),
        }
        for name, value in stand_ins.items():
            monkeypatch.setattr(module, name, value)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            given = [pointer_to(x) if isinstance(x, torch.Tensor) else x for x in args]
            constants = {name: value for name, value in options.items() if name.isupper()}
            _Program.grid = grid
            for place in product(*map(range, grid)):
                _Program.place = place
                self._function(*given, **constants)

        return launch
