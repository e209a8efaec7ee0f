"""A lane: what a replica of T x P GPUs does for one of the P batches in its pipeline.

With P stages, P batches are in flight, each in another stage. For each of them the replica behaves like an engine of
its own, with the same seconds per iteration as without stages and 1/P of the KV cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.capacity.replica_profile import Divisible, ReplicaProfile
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.cache_room import CacheRoom
from service.prediction.workload import Workload

ALL_REDUCES_A_LAYER = 2
"""After attention and after the MLP (Megatron-LM)."""
ALL_REDUCE_S = 8e-6
"""For a short message, including the time that a split GEMM takes beyond its share. From decode steps of Llama-8B on
two H200 (loadtest/log/capacity.md). The sum alone takes 3 us (`python -m loadtest.bench.all_reduce`)."""
ALL_REDUCE_BYTES_PER_S = 330e9
"""For long messages, over NVLink, from the same measurements."""
STAGE_HOP_S = 0.9e-3
"""From a stage to the next, including the drawn ids' way back to the first. From the same steps with two stages."""
_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """T GPUs compute each layer together (tensor parallel); P groups of them have some of the layers each (stages)."""

    tensor_parallel_size: int
    pipeline_parallel_size: int

    @property
    def num_gpus(self) -> int:
        """GPUs per replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def __str__(self) -> str:
        return f"{self.tensor_parallel_size} x {self.pipeline_parallel_size}"


@dataclass(frozen=True, slots=True)
class Lane:
    """iteration_s: seconds of an iteration with this work. room: its part of the KV cache. is_measured: False: derived
    from one GPU, with figures of two H200."""

    layout: Layout
    iteration_s: Callable[[Workload], float]
    room: CacheRoom
    is_measured: bool


def lane_of(profile: ReplicaProfile, layout: Layout, all_reduce_s: float = ALL_REDUCE_S) -> Lane:
    """Raises ValueError if the layout is neither in the profile nor derivable from it, or if the model does not fit: a
    request of max_model_len tokens must fit in the KV cache."""
    predictor = profile.predictor()

    def measured_s(workload: Workload) -> float:
        seconds = predictor.predicted_s(workload)
        assert seconds is not None, "a profile has enough timings"
        return seconds

    measured = Layout(profile.tensor_parallel_size, profile.pipeline_parallel_size)
    if layout == measured:
        room = _room(profile, profile.kv_tokens // layout.pipeline_parallel_size, layout)
        return Lane(layout, measured_s, room, is_measured=True)
    if profile.divisible is None or measured.num_gpus > 1:
        raise ValueError(f"{layout}: {profile.name} has only {measured}; give a profile measured with this layout")
    room = _room(profile, max(0, _kv_tokens(profile.divisible, layout)), layout)
    longest = room.longest_sequence
    if longest is not None and longest < profile.max_model_len:
        raise ValueError(
            f"{layout}: does not fit: room for {longest} tokens beside the weights, but a request may have "
            f"{profile.max_model_len}"
        )
    return Lane(layout, _divided(measured_s, profile.divisible, layout, all_reduce_s), room, is_measured=False)


def _room(profile: ReplicaProfile, kv_tokens: int, layout: Layout) -> CacheRoom:
    """As in the service: with stages all layers are one group, which frees blocks only if all have a sliding window."""
    of, window = profile.windowed, None
    if of is not None and (layout.pipeline_parallel_size == 1 or not of.num_full_groups):
        window = AttentionWindow(of.window_tokens, profile.max_num_batched_tokens, of.groups)
    num_units = kv_tokens // profile.block_size
    return CacheRoom(num_units * (1 if window is None else window.groups.size), profile.block_size, window)


def _kv_tokens(of: Divisible, layout: Layout) -> int:
    """KV tokens of a lane. Weights and KV cache are divided among all GPUs."""
    return (layout.num_gpus * of.memory_bytes - of.weights_bytes) // of.kv_token_bytes // layout.pipeline_parallel_size


def _divided(
    whole_s: Callable[[Workload], float], of: Divisible, layout: Layout, all_reduce_s: float
) -> Callable[[Workload], float]:
    num_ranks, num_hops = layout.tensor_parallel_size, layout.pipeline_parallel_size - 1
    if num_ranks == 1:
        return lambda workload: whole_s(workload) + num_hops * STAGE_HOP_S
    num_sums = ALL_REDUCES_A_LAYER * of.num_layers
    sent_s = 2 * (num_ranks - 1) / num_ranks * of.hidden_size * _ELEMENT_BYTES / ALL_REDUCE_BYTES_PER_S

    def seconds(workload: Workload) -> float:
        divided_s = max(0.0, whole_s(workload) - of.undivided_s) / num_ranks
        sums_s = num_sums * (all_reduce_s + workload.num_tokens * sent_s)
        return of.undivided_s + divided_s + sums_s + num_hops * STAGE_HOP_S

    return seconds
