"""Memory that the kernels of all ranks on one host read and write, and how these kernels wait for each other.

Each rank has one buffer of this layout, and all ranks can address it (over NVLink, or PCIe with peer access):

    flags   [MAX_PROGRAMS, ranks] int64: the step that each rank's program of this number has reached
    inputs  [2, INPUT_BYTES]: what kernels read of each other, synchronized by the flags
    mail    [2, capacity] bytes: what kernels send to each other (kernels/mail.py); zero between launches
    sums    [2, capacity] bytes: likewise

Each rank also has `steps` [MAX_PROGRAMS] int64 of its own: two more each launch. They are on the device, so that a
launch replayed by a CUDA graph goes on counting.

Program p of a launch waits only for the programs p of the other ranks. The two halves of inputs, mail and sums are used
alternately. A half may be overwritten when every other rank has begun the launch in between, which means that it has
ended the launch that read the half. For inputs the flags tell so; for mail, the arrival of that launch's values.

Rules: all ranks make the same launches (grid, sizes) in the same order, on one stream. On two streams they would wait
for each other forever. If a rank is gone, the others' kernels wait forever, and their processes must be killed.

Limits: at most MAX_PROGRAMS programs a launch, and all of a launch's programs must fit on the device at once. The
launchers take care of both.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

MAX_PROGRAMS = 256
INPUT_BYTES = 1 << 20
_NATIVE_ATOMIC_SUPPORTED = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class SymmetricMemory:
    """buffers [ranks] int64, on this rank's device: the address of each rank's buffer. steps: as above. capacity: bytes
    of one half of the mail, a multiple of 256. held: keeps the memory alive."""

    rank: int
    size: int
    buffers: Tensor
    steps: Tensor
    capacity: int
    held: Any

    @staticmethod
    def num_bytes(size: int, capacity: int) -> int:
        """Bytes of one rank's buffer, which must start as zeros."""
        return mail_offset(size) + 4 * capacity

    @classmethod
    def at(cls, addresses: Sequence[int], rank: int, capacity: int, device: torch.device, held: Any) -> SymmetricMemory:
        """addresses: of all ranks' buffers, which must be zero before any rank launches."""
        assert capacity % _ALIGNMENT == 0 and all(address % _ALIGNMENT == 0 for address in addresses)
        buffers = torch.tensor(addresses, dtype=torch.int64, device=device)
        steps = torch.zeros(MAX_PROGRAMS, dtype=torch.int64, device=device)
        return cls(rank, len(addresses), buffers, steps, capacity, held)

    @classmethod
    def of_group(cls, group: Any, capacity: int, device: torch.device) -> SymmetricMemory:
        """For a ProcessGroup whose ranks each have one GPU of this host; all ranks must call it. Raises RuntimeError if
        the GPUs cannot address each other. NVLink multicast stays off: it can take a host's GPUs out of service."""
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        import torch.distributed._symmetric_memory as symmetric  # here, because it imports half of torch

        size = group.size()
        buffer = symmetric.empty(cls.num_bytes(size, capacity), dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(buffer, group)
        buffer.zero_()
        torch.cuda.synchronize(device)
        handle.barrier()
        torch.cuda.synchronize(device)
        first = buffer.data_ptr() - handle.buffer_ptrs[group.rank()]  # the same on all ranks: equal allocations
        addresses = [address + first for address in handle.buffer_ptrs]
        return cls.at(addresses, group.rank(), capacity, device, (buffer, handle))


def can_exchange(device: torch.device, peers: Iterable[int]) -> bool:
    """Whether this GPU can address the memory of the peers (device numbers) with native atomic operations. NVLink has
    them, PCIe mostly not."""
    number = device.index
    return all(torch.cuda.can_device_access_peer(number, peer) and _has_atomics(number, peer) for peer in peers)


def _has_atomics(number: int, peer: int) -> bool:
    """True if the driver cannot tell."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    pair, answer = (ctypes.c_int(), ctypes.c_int()), ctypes.c_int()
    statuses = [driver.cuDeviceGet(ctypes.byref(each), at) for each, at in zip(pair, (number, peer), strict=True)]
    statuses.append(driver.cuDeviceGetP2PAttribute(ctypes.byref(answer), _NATIVE_ATOMIC_SUPPORTED, *pair))
    return any(statuses) or answer.value != 0


def flag_bytes(size: int) -> int:
    return -(-MAX_PROGRAMS * size * torch.int64.itemsize // _ALIGNMENT) * _ALIGNMENT


def mail_offset(size: int) -> int:
    """The byte offset of the mail in a buffer."""
    return flag_bytes(size) + 2 * INPUT_BYTES


@triton.jit
@no_type_check
def buffer_of(buffers_ptr, rank, offset, like_ptr):
    """A pointer, of like_ptr's type, to byte `offset` (a multiple of 16) of a rank's buffer."""
    address = tl.load(buffers_ptr + rank) + offset
    return tl.multiple_of(address.to(like_ptr.dtype), 16)


@triton.jit
@no_type_check
def wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step, SIZE: tl.constexpr):
    """Tell all ranks that this program has reached `step`, and wait until their programs have. Their earlier writes are
    visible afterwards. steps_ptr: has the type of the flags."""
    tl.debug_barrier()  # all threads of the program have written
    for peer in tl.static_range(SIZE):
        flags = buffer_of(buffers_ptr, peer, 0, steps_ptr)
        tl.atomic_xchg(flags + program * SIZE + rank, step, sem="release", scope="sys")
    own = buffer_of(buffers_ptr, rank, 0, steps_ptr)
    for peer in tl.static_range(SIZE):
        reached = tl.atomic_add(own + program * SIZE + peer, 0, sem="acquire", scope="sys")
        while reached < step:
            reached = tl.atomic_add(own + program * SIZE + peer, 0, sem="acquire", scope="sys")
    tl.debug_barrier()


@triton.jit
@no_type_check
def end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS: tl.constexpr):
    """Add two to every program's step, also of programs that this launch does not have."""
    tl.debug_barrier()  # all threads of the program have read its step
    slot = tl.arange(0, MAX_PROGRAMS)
    tl.store(steps_ptr + slot, tl.zeros([MAX_PROGRAMS], tl.int64) + step + 2, mask=slot % num_programs == program)
