"""The real scheduler and block pool on a device whose times are predicted: what requests would see."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.arrivals import PoissonArrivals
from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_device import ModelledDevice
from loadtest.capacity.lane import Lane
from loadtest.capacity.replica_profile import ReplicaProfile
from loadtest.offline.figures_of_merit import mean_batch_size, num_preemptions, percentile, request_throughput
from loadtest.offline.replay import offline_requests, replay
from loadtest.offline.serving_system import ReplayOutcome
from loadtest.random_streams import random_stream
from loadtest.trace import TraceRequest, with_arrivals
from loadtest.workload import Workload as Traffic
from loadtest.workload import draw
from service.core.iteration import IterationPlan
from service.prediction.workload import Workload
from service.scheduler.chunk_budget import ChunkBudget, FixedBudget, InPieces

SEED = 0
WARM_UP_SHARE = 0.1
"""Share of the requests that is not counted: the first ones find an empty replica."""
_VOCAB_SIZE = 256
"""Any size will do: prompts are distinct anyway, and their content does not matter."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients see of one lane: seconds, ascending. tpot: only of answers with more than one token."""

    ttft: Sequence[float]
    tpot: Sequence[float]
    requests_per_s: float
    mean_batch_size: float
    num_preemptions: int

    @classmethod
    def of(cls, outcome: ReplayOutcome, request_s: float) -> "Seen":
        """request_s: added to each TTFT; time outside the engine before the first token."""
        in_order = sorted(outcome.completions, key=lambda completion: completion.arrival_s)
        counted = in_order[int(len(in_order) * WARM_UP_SHARE) :]
        return cls(
            sorted(each.time_to_first_token_s + request_s for each in counted),
            sorted(each.time_per_output_token_s for each in counted if each.num_output_tokens > 1),
            request_throughput(outcome),
            mean_batch_size(outcome),
            num_preemptions(outcome),
        )

    def ttft_s(self, share: float) -> float:
        """The value that this share of the requests does not exceed."""
        return percentile(self.ttft, share)

    def tpot_s(self, share: float) -> float:
        """The same for TPOT; 0 if no answer has two tokens."""
        return percentile(self.tpot, share) if self.tpot else 0.0


def requests_of(traffic: Traffic, num_requests: int, max_model_len: int) -> list[TraceRequest]:
    """Requests without arrival times, the same on each call. Raises ValueError if one is too long for the replica, and
    for a traffic that has more than lengths (shared prefixes, turns, tools)."""
    if traffic.shared_prefix or traffic.conversation or traffic.tools:
        raise ValueError(f"workload: {traffic.name!r} has more than lengths, and only these are simulated")
    drawn = draw(traffic, num_requests, SEED)
    longest = max(request.prompt_len + request.output_len for request in drawn)
    if longest > max_model_len:
        raise ValueError(f"workload: a request of {longest} tokens; the profile's max_model_len is {max_model_len}")
    return drawn


def simulate(
    profile: ReplicaProfile, lane: Lane, requests: Sequence[TraceRequest], request_rate: float | None = None
) -> Seen:
    """Poisson arrivals at `request_rate` per second; None: all at once."""
    return Seen.of(replayed(profile, lane, requests, request_rate), profile.request_s)


def replayed(
    profile: ReplicaProfile, lane: Lane, requests: Sequence[TraceRequest], request_rate: float | None = None
) -> ReplayOutcome:
    """The replay from which `simulate` takes its figures."""
    if request_rate is not None:
        arrivals = PoissonArrivals(request_rate).arrival_times(len(requests), random_stream(SEED, "arrivals"))
        requests = with_arrivals(requests, arrivals.tolist())
    device = ModelledDevice(profile.block_size, lambda plan: _plan_s(lane, plan))
    pool = KvPool(
        device,
        device.clock(),
        lane.room.num_blocks,
        profile.block_size,
        profile.max_model_len,
        profile.max_num_seqs,
        profile.max_num_batched_tokens,
        _VOCAB_SIZE,
        window=lane.room.window,
    )
    budget = chunk_budget(profile.max_num_batched_tokens, cuts_prompts=profile.cuts_prompts)
    policies = EnginePolicies(on_demand(pool), chunk_budget=budget)
    return replay(EngineSystem(profile.name, pool, policies), offline_requests(requests, _VOCAB_SIZE))


def _plan_s(lane: Lane, plan: IterationPlan) -> float:
    return lane.iteration_s(Workload.of(plan)) if plan.computes else 0.0


def chunk_budget(max_num_batched_tokens: int, *, cuts_prompts: bool) -> ChunkBudget:
    """The service's default: on a GPU, prompts beside decodes are computed in chunks."""
    return InPieces(max_num_batched_tokens) if cuts_prompts else FixedBudget(max_num_batched_tokens)
