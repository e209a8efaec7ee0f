"""CPU time per iteration on the host, without the model: deciding the iteration and applying its result.

    python -m loadtest.deciding_cost [--seqs 256,1024] [--context 2048] [--block-sizes 1,16]
    python -m loadtest.deciding_cost --traffic [--seqs 256,1024]
    python -m loadtest.deciding_cost --arrivals [--seqs 15,40]

Uses the engine's own scheduler and block manager, and an executor that answers at once. Times are CPU times of the
thread, so other users of the machine do not count; the minimum and the median over many iterations are printed. By
default all sequences only decode. With --traffic requests end, others start in their place, and more wait. With
--arrivals requests come one by one, none waits, and iterations overlap: what an iteration costs in which a request
starts or ends.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from loadtest.baselines.iteration_log import IterationLog
from service.core.events import FinalEvent
from service.core.iteration import IterationPlan, IterationResult
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.engine.engine import Engine
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.kvcache.swap_space import SwapSpace
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.swap_time import SwapTime
from service.process.interpreter import GC_THRESHOLDS
from service.scheduler.admission import OnDemandAdmission
from service.scheduler.chunk_budget import FixedBudget
from service.scheduler.fairness import Fair
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.preemption import AlwaysRecompute
from service.scheduler.priority import ByPriority
from service.scheduler.scheduler_policies import SchedulerPolicies
from service.scheduler.scheduling_policy import SchedulingPolicy
from service.scheduler.token_shares import TokenShares

MAX_TOKENS = 65_536
NUM_OUTPUT_TOKENS = 400
NUM_WAITING = 1000
"""Waiting requests with --traffic: about as many as the service lets wait."""


MakePolicy = Callable[[History, SwapSpace], SchedulingPolicy]

POLICIES: Mapping[str, MakePolicy] = MappingProxyType(
    {
        "fcfs": lambda history, swap_space: FirstComeFirstServed(),
        "priority": lambda history, swap_space: ByPriority(),
        "shares": lambda history, swap_space: TokenShares(history),
        "fair": lambda history, swap_space: Fair(swap_space),
    }
)


class ThreadClock:
    def now_s(self) -> float:
        return time.thread_time()


@dataclass(frozen=True)
class Answer:
    plan: IterationPlan

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        return IterationResult((7,) * self.plan.num_draws)


class AnsweringExecutor:
    """Always draws the same token, at once."""

    def launch(self, plan: IterationPlan) -> Answer:
        return Answer(plan)


def make_engine(
    num_seqs: int,
    num_blocks: int,
    block_size: int,
    *,
    caching: bool,
    sink: IterationLog,
    make_policy: MakePolicy = lambda history, swap_space: FirstComeFirstServed(),
    overlap: bool = False,
) -> Engine:
    cache = ChainedPrefixCache(block_size, max(1, 16 // block_size)) if caching else NoPrefixCache()
    cost, history = PreemptionCost(IterationTime(), SwapTime(), MAX_TOKENS), History()
    blocks = BlockManager(num_blocks, block_size, cache)
    scheduler = IterationScheduler(
        blocks,
        SchedulerPolicies(
            make_policy(history, blocks.swap_space), OnDemandAdmission(0), AlwaysRecompute(), FixedBudget(MAX_TOKENS)
        ),
        RecoveryLedger(cost),
        history,
        ThreadClock(),
        max_num_seqs=num_seqs,
        max_preemptions=8,
    )
    return Engine(scheduler, AnsweringExecutor(), sink, ThreadClock(), overlap=overlap)


@dataclass(frozen=True)
class Cost:
    """Milliseconds. decide_ms, decide_median_ms: deciding a decode-only iteration, minimum and median of many.
    apply_ms: applying one, minimum. prefill_ms: all prompts together."""

    decide_ms: float
    decide_median_ms: float
    apply_ms: float
    prefill_ms: float


def measure(num_seqs: int, context: int, block_size: int, *, caching: bool) -> Cost:
    """With `num_seqs` running sequences that have grown to `context` tokens and share no prefix."""
    num_blocks = num_seqs * (-(-(context + NUM_OUTPUT_TOKENS) // block_size) + 1)
    sink = IterationLog()
    engine = make_engine(num_seqs, num_blocks, block_size, caching=caching, sink=sink)
    for number in range(num_seqs):
        prompt = tuple(range(number, number + context - NUM_OUTPUT_TOKENS // 2))
        engine.requests.add(Request(f"r{number}", prompt, SamplingParams(NUM_OUTPUT_TOKENS, temperature=0.0), 0.0))
    gc.collect()
    gc.freeze()
    started_s = time.thread_time()
    while any(group.num_output_tokens == 0 for group in engine.scheduler.pool.groups()):
        engine.step()
    prefill_s = time.thread_time() - started_s
    engine.requests.events.take()
    sink.iterations.clear()
    for _ in range(NUM_OUTPUT_TOKENS - 20):
        engine.step()
        engine.requests.events.take()
    decide = [stats.schedule_s for stats in sink.iterations if stats.batch_size == num_seqs]
    applied = [stats.apply_s for stats in sink.iterations if stats.batch_size == num_seqs]
    gc.unfreeze()
    return Cost(1e3 * min(decide), 1e3 * statistics.median(decide), 1e3 * min(applied), 1e3 * prefill_s)


def measure_traffic(num_seqs: int, make_policy: MakePolicy, num_iterations: int) -> tuple[float, float]:
    """Median ms of deciding and of applying, while `num_seqs` requests run and others wait. Prompts and answers have
    16 to 300 tokens and come from seven clients."""
    chance, sink = random.Random(0), IterationLog()
    engine = make_engine(num_seqs, 40 * num_seqs, 16, caching=True, sink=sink, make_policy=make_policy)
    num_added = 0
    for number in range(num_iterations + 300):  # the first 300 fill the batch
        num_to_add = num_seqs + NUM_WAITING - len(engine.requests.request_ids()) if number % 16 == 0 else 0
        for _ in range(num_to_add):
            prompt = tuple(range(num_added, num_added + chance.randint(16, 300)))
            params = SamplingParams(chance.randint(16, 300), temperature=0.0)
            client = f"client-{num_added % 7}"
            engine.requests.add(Request(f"r{num_added}", prompt, params, time.thread_time(), client=client))
            num_added += 1
        engine.step()
        engine.requests.events.take()
    full = [stats for stats in sink.iterations[300:] if stats.batch_size > 0.9 * num_seqs]
    decide, applied = (statistics.median(getattr(s, name) for s in full) for name in ("schedule_s", "apply_s"))
    return 1e3 * decide, 1e3 * applied


def measure_arrivals(num_seqs: int, num_iterations: int) -> dict[str, list[float]]:
    """CPU seconds of iterations in which a request was added, in which one ended, both, or neither; about `num_seqs`
    run, with answers of 64 tokens in the mean."""
    chance, engine = random.Random(0), make_engine(256, 8192, 16, caching=True, sink=IterationLog(), overlap=True)
    seconds: dict[str, list[float]] = {"neither": [], "end": [], "start": [], "start, end": []}
    for number in range(num_iterations + 300):  # the first 300 fill the batch
        starts = chance.random() < num_seqs / 64
        prompt = tuple(chance.randrange(30_000) for _ in range(chance.randint(32, 512))) if starts else ()
        params = SamplingParams(chance.randint(1, 127), temperature=0.0)
        began_s = time.thread_time()
        if starts:
            engine.requests.add(Request(f"r{number}", prompt, params, began_s))
            engine.snapshot()
        engine.step()
        took_s = time.thread_time() - began_s
        ends = any(type(news[1]) is FinalEvent for news in engine.requests.events.take())
        kinds = [kind for kind, is_one in (("start", starts), ("end", ends)) if is_one]
        if number >= 300:
            seconds[", ".join(kinds) or "neither"].append(took_s)
    return seconds


def print_arrivals(all_num_seqs: Sequence[int], num_iterations: int) -> None:
    """One row per number of sequences and kind of iteration."""
    print("| sequences | in the iteration | least us | first tenth us | median us |\n|---|---|---|---|---|")
    for num_seqs in all_num_seqs:
        for kind, seconds in measure_arrivals(num_seqs, num_iterations).items():
            each = sorted(1e6 * s for s in seconds)
            figures = " | ".join(f"{each[int(len(each) * share)]:.0f}" for share in (0, 0.1, 0.5))
            print(f"| {num_seqs} | {kind} | {figures} |", flush=True)


def print_decodes(all_num_seqs: Sequence[int], block_sizes: Sequence[int], context: int, rounds: int) -> None:
    """One row per size, with and without a prefix cache."""
    print("| sequences | block size | prefix cache | decide, least ms | median | apply, least ms | all prompts ms |")
    print("|---|---|---|---|---|---|---|")
    for num_seqs in all_num_seqs:
        for block_size in block_sizes:
            for caching in (False, True):
                costs = [measure(num_seqs, context, block_size, caching=caching) for _ in range(rounds)]
                cells = [
                    min(cost.decide_ms for cost in costs),
                    min(cost.decide_median_ms for cost in costs),
                    min(cost.apply_ms for cost in costs),
                    min(cost.prefill_ms for cost in costs),
                ]
                numbers = " | ".join(f"{cell:.3f}" for cell in cells)
                print(f"| {num_seqs} | {block_size} | {'on' if caching else 'off'} | {numbers} |", flush=True)


def print_traffic(all_num_seqs: Sequence[int], num_iterations: int) -> None:
    """One row per scheduling policy."""
    print("| sequences | policy | decide, median ms | apply, median ms |\n|---|---|---|---|")
    for num_seqs in all_num_seqs:
        for name, make_policy in POLICIES.items():
            decide_ms, apply_ms = measure_traffic(num_seqs, make_policy, num_iterations)
            print(f"| {num_seqs} | {name} | {decide_ms:.3f} | {apply_ms:.3f} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", help="default: 256,1024; with --arrivals 15,40")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--block-sizes", default="1,16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--traffic", action="store_true", help="requests end, start and wait; one row per scheduling policy"
    )
    parser.add_argument("--arrivals", action="store_true", help="requests come and end one by one, and none waits")
    parser.add_argument("--iterations", type=int, default=1000, help="with --traffic or --arrivals")
    options = parser.parse_args(arguments)
    default = "15,40" if options.arrivals else "256,1024"
    all_num_seqs = [int(number) for number in (options.seqs or default).split(",")]
    if options.context <= NUM_OUTPUT_TOKENS // 2:
        parser.error(
            f"--context {options.context}: more than {NUM_OUTPUT_TOKENS // 2}, which are generated to get there"
        )
    was = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)  # as in the service
    try:
        if options.traffic:
            print_traffic(all_num_seqs, options.iterations)
        elif options.arrivals:
            print_arrivals(all_num_seqs, options.iterations)
        else:
            block_sizes = [int(size) for size in options.block_sizes.split(",")]
            print_decodes(all_num_seqs, block_sizes, options.context, options.rounds)
    finally:
        gc.set_threshold(*was)


if __name__ == "__main__":
    main()
