"""Memory of one host's GPUs that the kernels of every rank read and write, and how kernels wait for each other in it.

A buffer of each rank, of the same layout, which all ranks can address (over NVLink, or PCIe where peers see it):

    flags   [MAX_PROGRAMS, ranks] int64: how far each rank's program of that number has come
    inputs  [2, INPUT_BYTES]: what kernels read of each other by the flags
    mail    [2, capacity] bytes: what kernels send to each other (kernels/mail.py), zero between launches
    sums    [2, capacity] bytes, likewise

and, of each rank for itself, steps [MAX_PROGRAMS] int64: two a launch, kept on the device, so that a launch that a CUDA
graph replays goes on counting.

Program p of a launch waits for the programs p of the other ranks alone. Halves are taken in turn. Whoever overwrites
one has heard from all others, in the launch between, that they have begun it, and with that have ended the launch that
read it: of inputs by the flags, of mail because it is waited for; who sums rows for others has heard from all of these.

Rules: all ranks make the same launches (grid, sizes) in the same order, one behind the other: on one stream, or on
several that wait for each other's events. Two at once would wait for each other for ever. A rank that is gone leaves
the others' kernels waiting: end their processes.

Limits: MAX_PROGRAMS programs a launch, and no more than run at once: what launches sees to that.
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
    """buffers [ranks] int64: the address of each rank's on this one's device. steps: as above. capacity: bytes of one
    half of the mail, a multiple of 256. held: what keeps the memory."""

    rank: int
    size: int
    buffers: Tensor
    steps: Tensor
    capacity: int
    held: Any

    @staticmethod
    def num_bytes(size: int, capacity: int) -> int:
        """Of a rank's buffer, which begins as zeros."""
        return mail_offset(size) + 4 * capacity

    @classmethod
    def at(cls, addresses: Sequence[int], rank: int, capacity: int, device: torch.device, held: Any) -> SymmetricMemory:
        """addresses: of all ranks' buffers, zeroed before any rank launches."""
        assert capacity % _ALIGNMENT == 0 and all(address % _ALIGNMENT == 0 for address in addresses)
        buffers = torch.tensor(addresses, dtype=torch.int64, device=device)
        steps = torch.zeros(MAX_PROGRAMS, dtype=torch.int64, device=device)
        return cls(rank, len(addresses), buffers, steps, capacity, held)

    @classmethod
    def of_group(cls, group: Any, capacity: int, device: torch.device) -> SymmetricMemory:
        """Of a ProcessGroup whose ranks have a GPU of this host each; all call it. Raises RuntimeError where their GPUs
        cannot address each other. Without NVLink's multicast, which can take a host's GPUs out of service."""
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        import torch.distributed._symmetric_memory as symmetric  # which imports half of torch: for this alone

        size = group.size()
        buffer = symmetric.empty(cls.num_bytes(size, capacity), dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(buffer, group)
        buffer.zero_()
        torch.cuda.synchronize(device)
        handle.barrier()
        torch.cuda.synchronize(device)
        first = buffer.data_ptr() - handle.buffer_ptrs[group.rank()]  # on all ranks: each has allocated the same
        addresses = [address + first for address in handle.buffer_ptrs]
        return cls.at(addresses, group.rank(), capacity, device, (buffer, handle))


def can_exchange(device: torch.device, peers: Iterable[int]) -> bool:
    """Whether this GPU may address the memory of those, by their numbers, and its atomic operations are such there,
    too: over NVLink they are, over PCIe mostly not."""
    number = device.index
    return all(torch.cuda.can_device_access_peer(number, peer) and _has_atomics(number, peer) for peer in peers)


def _has_atomics(number: int, peer: int) -> bool:
    """Also where the driver does not say."""
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
    """Bytes before it."""
    return flag_bytes(size) + 2 * INPUT_BYTES


@triton.jit
@no_type_check
def buffer_of(buffers_ptr, rank, offset, like_ptr):
    """Where `offset` bytes of a rank's buffer lie, as a pointer like another; offset: a multiple of 16."""
    address = tl.load(buffers_ptr + rank) + offset
    return tl.multiple_of(address.to(like_ptr.dtype), 16)


@triton.jit
@no_type_check
def wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step, SIZE: tl.constexpr):
    """Tell all ranks that this program has come to `step`, and wait until theirs have. What they wrote before is seen
    behind it. steps_ptr: gives the type of flags."""
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
    """Every program's step is two further, also of those that this launch has not."""
    tl.debug_barrier()  # all threads of the program have read its step
    slot = tl.arange(0, MAX_PROGRAMS)
    tl.store(steps_ptr + slot, tl.zeros([MAX_PROGRAMS], tl.int64) + step + 2, mask=slot % num_programs == program)
