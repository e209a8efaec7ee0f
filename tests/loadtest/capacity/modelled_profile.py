"""A profile of the modelled device, from the iterations of one burst on it: what measuring a machine gives."""

from __future__ import annotations

from functools import cache

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_device import ModelledDevice, iteration_s
from loadtest.capacity.replica_profile import Divisible, ReplicaProfile, Timing
from loadtest.offline.replay import offline_requests, replay
from loadtest.offline.serving_system import ReplayOutcome
from loadtest.trace import TraceRequest
from loadtest.workload import draw, named
from service.core.iteration import IterationPlan
from service.prediction.workload import Workload

KV_TOKENS, MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 49_152, 2048, 128, 1024
DIVISIBLE = Divisible(
    memory_bytes=22_500_000_000,
    weights_bytes=16_060_522_496,
    kv_token_bytes=131_072,
    num_layers=32,
    hidden_size=4096,
    undivided_s=0.5e-3,
)


def run_on_the_device(
    requests: list[TraceRequest], seen: list[tuple[Workload, float]] | None = None, *, kv_tokens: int = KV_TOKENS
) -> ReplayOutcome:
    """By the device's own formula. seen: gets each iteration's work and seconds."""

    def plan_s(plan: IterationPlan) -> float:
        seconds = iteration_s(plan)
        if seen is not None and plan.computes:
            seen.append((Workload.of(plan), seconds))
        return seconds

    device = ModelledDevice(16, plan_s)
    sizes = (kv_tokens // 16, 16, MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, 256)
    pool = KvPool(device, device.clock(), *sizes)
    return replay(EngineSystem("device", pool, EnginePolicies(on_demand(pool))), offline_requests(requests, 256))


@cache
def modelled_profile() -> ReplicaProfile:
    seen: list[tuple[Workload, float]] = []
    run_on_the_device(draw(named("orca"), 150, 7), seen)
    return ReplicaProfile(
        name="modelled",
        source="the formula",
        kv_tokens=KV_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        cuts_prompts=False,
        divisible=DIVISIBLE,
        timings=tuple(Timing.of(*timing) for timing in seen),
    )
