"""Transfers timed at start-up, to which the swap predictor is first fitted (AdaptiveLLM, section 3.3)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from service.core.block_moves import FinishedTransfer, Transfer
from service.core.clock import Clock
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.prediction.calibration import PROBE_SEQUENCE_ID, Execute
from service.prediction.swap_time import Copies, SwapTime

ROW = 1
ROUNDS = 5
NUM_BLOCKS = (1, 2, 4, 8, 16, 64)


def calibrate_transfers(
    execute: Execute, swap_time: SwapTime, clock: Clock, *, num_blocks: int, num_host_blocks: int
) -> None:
    """Time transfers beside a decode, which takes some memory bandwidth, as in traffic; and the same decode without
    them, to learn what the copies add. Before serving, since it overwrites blocks. Does nothing if there is no room for
    two transfers.

    Uses medians over several rounds. The plans alternate, in a new order each round: a host that repeats the same
    launch gets faster than it will ever be in traffic, and the first transfer of few blocks depends on that.
    """
    pairs, shuffled = list(_pairs(num_blocks, num_host_blocks)), random.Random(0)
    decode = ScheduledSequence(
        PROBE_SEQUENCE_ID, ROW, (0,), 0, 0, (0,), SamplingParams(max_tokens=2), (Sample(PROBE_SEQUENCE_ID, 0),)
    )
    added_s = defaultdict[tuple[Transfer, ...], list[float]](list)
    copied = defaultdict[Transfer, list[FinishedTransfer]](list)
    for _ in range(ROUNDS):
        for pair in shuffled.sample(pairs, len(pairs)):
            seconds, finished = list[float](), dict[int, FinishedTransfer]()
            for transfers in ((), pair):
                started_s = clock.now_s()
                result = execute(IterationPlan((decode,), transfers=transfers))
                seconds.append(clock.now_s() - started_s if result.compute_s is None else result.compute_s)
                decode = decode._replace(table_start=1, block_ids=())  # the executor knows its table now
            added_s[pair].append(seconds[1] - seconds[0])
            while True:
                finished.update((each.transfer_id, each) for each in result.finished_transfers)
                if len(finished) == len(pair):
                    break
                result = execute(IterationPlan((), awaits_transfer=True))
            for transfer in pair:
                copied[transfer].append(finished[transfer.transfer_id])
    execute(IterationPlan((), released=(ROW,)))
    _learn(swap_time, sum(map(median, added_s.values())), copied)


def _learn(swap_time: SwapTime, added_s: float, copied: dict[Transfer, list[FinishedTransfer]]) -> None:
    copied_s = 0.0
    for transfer, finished in copied.items():
        seconds = median(each.seconds or 0.0 for each in finished)
        copied_s += seconds
        swap_time.calibrate(Copies(transfer.to_host, len(transfer.device_blocks), finished[0].is_first), seconds)
    if copied_s:
        swap_time.added_share = min(1.0, max(0.0, added_s / copied_s))


def _pairs(num_blocks: int, num_host_blocks: int) -> Iterator[tuple[Transfer, Transfer]]:
    """Pairs of consecutive transfers of equal size, for several sizes and both directions. Their blocks are scattered
    over memory, as after a while of serving."""
    most = min(num_blocks, num_host_blocks) // 2
    for count in sorted({min(count, most) for count in NUM_BLOCKS} - {0}):
        device, host = (tuple(range(0, n, n // (2 * count))) for n in (num_blocks, num_host_blocks))
        for to_host in (True, False):
            first, second = (
                Transfer(-1 - start, to_host, device[start : start + count], host[start : start + count])
                for start in (0, count)
            )
            yield first, second
