"""Time to swap a sequence, by block size: small blocks moved together, against one copy per block.

    python -m loadtest.bench.swaps [--tokens 1000] [--block-sizes 1,2,4,8,16] [--rounds 7]

Llama-8B's keys and values in bf16, blocks scattered on both sides. `out`, `in`: by the device's clock. `launch`: time
of the engine's thread in `KvTransfer.start`. `beside`: how much longer products that read 4.7 GB of weights (about as
long as a decode step) take while the sequence is swapped out.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import NamedTuple

import torch

from loadtest.bench.report import print_json, print_table
from service.core.block_moves import Transfer
from service.runner.host_blocks import PlainHostBlocks
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.kv_transfer import KvTransfer

_WEIGHT_SHAPE = (20, 4096, 28672)
_ROWS = 16


class Swap(NamedTuple):
    """Medians in seconds. launch_s: of swapping out. beside_s: see above; None on a CPU, where nothing overlaps."""

    out_s: float
    in_s: float
    launch_s: float
    beside_s: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--block-sizes", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    step = _Step(device) if device.type == "cuda" else None
    rows, results = [], []
    for block_size in map(int, options.block_sizes.split(",")):
        layout = KvLayout(32, block_size, 8, 128, torch.bfloat16)
        for way, small_bytes in (("together", 1 << 62), ("one by one", 0)):
            swap = measure(layout, options.tokens, small_bytes, device, options.rounds, step)
            times = ["-" if s is None else f"{1e3 * s:.3f}" for s in swap]
            rows.append([f"{block_size}, {way}", *times])
            results.append({"block_size": block_size, "way": way, **swap._asdict()})
    print_table(["block size", "out, ms", "in, ms", "launch, ms", "beside, ms"], rows)
    print_json({"device": str(device), "step_s": step and step.alone_s, "swaps": results})


def measure(
    layout: KvLayout, num_tokens: int, small_bytes: int, device: torch.device, rounds: int, step: _Step | None
) -> Swap:
    """Swap a sequence of `num_tokens` tokens out and in. small_bytes: as in `PlainHostBlocks`."""
    num_blocks = -(-num_tokens // layout.block_size)
    host = PlainHostBlocks(layout, num_blocks, pinned=device.type == "cuda", small_bytes=small_bytes)
    transfer = KvTransfer(KvStorage(layout, 2 * num_blocks, device), host)
    chance = random.Random(0)
    here, there = chance.sample(range(2 * num_blocks), num_blocks), chance.sample(range(num_blocks), num_blocks)
    leaves, returns = (Transfer(number, number == 0, tuple(here), tuple(there)) for number in (0, 1))
    seconds = [(*_seconds(transfer, leaves), *_seconds(transfer, returns)) for _ in range(rounds + 1)][1:]
    beside = None
    if step is not None:
        beside = median(step.seconds(transfer, leaves) for _ in range(rounds)) - step.alone_s
    out_s, launch_s, in_s, _ = (median(column) for column in zip(*seconds, strict=True))
    return Swap(out_s, in_s, launch_s, beside)


def _seconds(transfer: KvTransfer, moved: Transfer) -> tuple[float, float]:
    """Seconds by the device's clock, and until `start` has returned."""
    began_s = time.perf_counter()
    transfer.start((moved,))
    launch_s = time.perf_counter() - began_s
    (finished,) = transfer.take_finished(wait=True)
    return finished.seconds or 0.0, launch_s


class _Step:
    """Products with many weights in one CUDA graph, like a decode step."""

    def __init__(self, device: torch.device) -> None:
        self._weights = torch.zeros(_WEIGHT_SHAPE, dtype=torch.bfloat16, device=device)
        self._rows = torch.zeros(_ROWS, _WEIGHT_SHAPE[1], dtype=torch.bfloat16, device=device)
        self._compute()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._compute()
        self.seconds()
        self.alone_s = median(self.seconds() for _ in range(7))

    def seconds(self, transfer: KvTransfer | None = None, moved: Transfer | None = None) -> float:
        """Seconds of one step. The transfer, if given, starts with it."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        after = None if transfer is None else transfer.mark()
        began.record()
        self._graph.replay()
        ended.record()
        if transfer is not None and moved is not None:
            transfer.start((moved,), after)
            transfer.take_finished(wait=True)
        ended.synchronize()
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1000

    def _compute(self) -> None:
        for weight in self._weights:
            self._rows @ weight


if __name__ == "__main__":
    main()
