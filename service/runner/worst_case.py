"""The largest possible iteration: compiles its kernels, and measures how much memory it leaves for the KV cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from service.config import CacheConfig
from service.core.iteration import IterationPlan
from service.core.layer_groups import most_fillable_blocks
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.core.training import MOST_GRAPH_TOKENS
from service.lora.adapter_layout import AdapterLayout
from service.models.causal_lm import CausalLM
from service.runner.choices.rank_compiling import compile_for_ranks
from service.runner.choices.step_choices import StepChoices
from service.runner.cuda_memory import CudaMemory
from service.runner.graph_sizes import GraphSize
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.load_phases import LoadPhases
from service.runner.memory_profile import MemoryLedger, profile_cpu, profile_device
from service.runner.model_runner import ModelRunner
from service.runner.sequence_rows import DeviceBlockTable
from service.runner.warm_up import warm_up
from service.sampling.token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """most_blocks: of the adapters of all slots together. table_bytes: of AdapterTables. training_bytes: what training
    one adapter holds on the device, without activations; 0 if none are trained. moments_bytes: the part of
    training_bytes that may lie on the host instead."""

    num_slots: int = 0
    most_blocks: int = 0
    table_bytes: int = 0
    training_bytes: int = 0
    moments_bytes: int = 0


def moments_bytes(layout: AdapterLayout) -> int:
    """AdamW's two moments, in fp32, for each number of A and B of the largest adapter."""
    return 2 * layout.most_numbers * torch.float32.itemsize


def training_bytes(layout: AdapterLayout) -> int:
    """What training the largest adapter holds on a device, without activations: each number of A and B, its gradient
    and AdamW's two moments in fp32, and a copy in the model's dtype if that is not fp32."""
    copied = 0 if layout.dtype is torch.float32 else layout.dtype.itemsize
    return layout.most_numbers * (4 * torch.float32.itemsize + copied)


_HELD_BY_GRAPHS = 160 << 20
"""The graphs themselves, for as many arenas as are kept, and cuBLAS's workspace for captures."""
_ATTENTION_TOKEN_BYTES = 96 << 10
"""Per token: the gradients of FlashAttention's deterministic backward pass, in fp32 with heads of 128. There are as
many splits as it takes, with the heads, to fill a device of 132 multiprocessors."""


_WIDENING_TOKENS = 512
"""Tokens of a prompt whose attention first widens the FP8 cache, with the kernel for few rows."""


def training_graph_bytes(layout: AdapterLayout) -> int:
    """The most that CUDA graphs of a training's layer steps hold on a device: the graphs themselves, and the temporary
    tensors of the largest, which has the widest linear's input and output with their gradients."""
    widths = (max(site.own_in_features, site.own_out_features) for site in layout.sites.values())
    token_bytes = 4 * max(widths) * layout.dtype.itemsize + _ATTENTION_TOKEN_BYTES
    return MOST_GRAPH_TOKENS * token_bytes + _HELD_BY_GRAPHS


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The bounds of an iteration. graphs: the sizes that may be captured, in this order, the largest of all first;
    empty without CUDA graphs. deterministic: all iterations are."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    graphs: Sequence[GraphSize]
    adapters: AdapterSizes = AdapterSizes()
    deterministic: bool = False

    def most_filled_blocks(self, layout: KvLayout, num_stages: int) -> int:
        """Blocks that can be filled, by the sequences of all iterations in flight and by the adapters of all slots. A
        larger cache would be idle."""
        num_seqs = self.max_num_seqs * num_stages
        of_sequences = most_fillable_blocks(num_seqs, self.max_model_len, layout.block_size, layout.num_groups)
        return of_sequences + self.adapters.most_blocks

    def table_bytes(self, layout: KvLayout) -> int:
        """Memory of the adapters' tables, and what grows with the number of sequences, besides their blocks: per
        sequence one row of the token counts and two rows of the block table (as many as ModelRunner makes)."""
        max_blocks = -(-self.max_model_len // layout.block_size) * layout.num_groups
        of_blocks = DeviceBlockTable.num_bytes(2 * self.max_num_seqs + 1, max_blocks)
        return of_blocks + TokenCounts.num_bytes(self.max_num_seqs, self.vocab_size) + self.adapters.table_bytes


class WorstCase:
    """An iteration with the most tokens and the most sequences that one may have; each sequence draws with top-p.

    All sequences share the same blocks: only shapes matter, not values.
    """

    def __init__(self, model: CausalLM, layout: KvLayout, device: torch.device, sizes: StepSizes) -> None:
        self._num_seqs = min(sizes.max_num_seqs, sizes.max_num_batched_tokens)
        self._length = min(sizes.max_num_batched_tokens // self._num_seqs, sizes.max_model_len)
        self._num_blocks = -(-self._length // layout.block_size)
        storage = KvStorage(layout, max(2, self._num_blocks), device)  # two: for warm_up
        self.runner = ModelRunner(
            model,
            storage,
            device,
            self._num_seqs,
            sizes.max_model_len,
            sizes.vocab_size,
            all_deterministic=sizes.deterministic,
        )
        self._graphs = sizes.graphs
        most = sizes.max_num_batched_tokens
        rows_of_each_kernel = {*model.rows_of_each_kernel, *((_WIDENING_TOKENS, most) if layout.is_fp8 else ())}
        if not sizes.graphs:  # with graphs, the largest one covers long prompts
            rows_of_each_kernel.add(most)
        self._rows_of_each_kernel = sorted(n for n in rows_of_each_kernel if n <= most)

    def plan(self) -> IterationPlan:
        params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)
        blocks, token_ids = tuple(range(self._num_blocks)), (0,) * self._length
        rows = range(1, 1 + self._num_seqs)
        return IterationPlan(
            tuple(ScheduledSequence(r, r, token_ids, 0, 0, blocks, params, (Sample(r, r),)) for r in rows)
        )

    def run(self) -> None:
        """Compute it and forget its sequences."""
        self.runner.launch(self.plan()).wait()
        self.runner.launch(IterationPlan((), released=tuple(range(1, 1 + self._num_seqs)))).wait()

    def launch_kernels(self) -> None:
        """Launch all kernels that iterations need."""
        self.run()
        warm_up(self.runner)
        for size in self._graphs[:1]:
            self.runner.replays.compute_padding(size)
        for num_rows in self._rows_of_each_kernel:
            self.runner.replays.compute_padding(GraphSize(num_rows, 1))


def choose_and_measure(
    choose: Callable[[Callable[[], object]], StepChoices],
    model: CausalLM,
    layout: KvLayout,
    device: torch.device,
    weights_bytes: int,
    cache: CacheConfig,
    sizes: StepSizes,
    phases: LoadPhases,
) -> tuple[StepChoices, MemoryLedger]:
    """Choose how the model's steps are computed, and measure where the device's memory goes; on a GPU by running the
    worst case.

    A kernel that is compiled at its first use is compiled alone. So kernels are compiled side by side instead: the
    worst case's beside those that are timed, then the few that only the choices need.

    choose: gives the model its methods (service/runner/choices/choosing.py). Its argument launches kernels to compile
    beside its own.
    """
    num_ranks = model.parallel.size * model.stage.size
    if device.type == "cpu":
        choices = choose(lambda: None)
        phases.end("choices")
        return choices, profile_cpu(weights_bytes, cache.memory_bytes, num_ranks)
    worst_case = WorstCase(model, layout, device, replace(sizes, deterministic=False))
    choices = choose(worst_case.launch_kernels)
    phases.end("choices")
    if sizes.deterministic:  # by now it is known whether such steps are batched
        worst_case = WorstCase(model, layout, device, sizes)
    compile_for_ranks(worst_case.launch_kernels, model.parallel)
    phases.end("kernels")
    memory = profile_device(
        CudaMemory(device),
        weights_bytes,
        cache.memory_utilization,
        cache.memory_bytes,
        worst_case.run,
        worst_case.runner.replays.capture,
        choices.graphs * (1 + (sizes.adapters.num_slots > 0) + worst_case.runner.replays.captures_asked),
        sizes.table_bytes(layout),
        sizes.adapters.training_bytes,
        sizes.adapters.moments_bytes,
    )
    del worst_case
    gc.collect()  # the runner and its graphs refer to each other
    torch.cuda.empty_cache()
    phases.end("profile")
    return choices, memory
