"""An iteration as large as one can be: what it compiles, and how much memory it leaves for the KV cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from service.config import CacheConfig
from service.core.iteration import IterationPlan
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
    """most_blocks: of all slots' adapters together. table_bytes: what says where they are. training_bytes: what the
    training of one holds on the device, but for activations; 0 where none are trained. moments_bytes: of these, what
    may lie on the host instead."""

    num_slots: int = 0
    most_blocks: int = 0
    table_bytes: int = 0
    training_bytes: int = 0
    moments_bytes: int = 0


def moments_bytes(layout: AdapterLayout) -> int:
    """AdamW's two of each number of A and B of the largest adapter, in fp32."""
    return 2 * layout.most_numbers * torch.float32.itemsize


def training_bytes(layout: AdapterLayout) -> int:
    """What the training of the largest adapter holds on a device, but for activations: each number of A and B, its
    gradient and AdamW's two moments of it in fp32, and a copy in the model's dtype if that is another."""
    copied = 0 if layout.dtype is torch.float32 else layout.dtype.itemsize
    return layout.most_numbers * (4 * torch.float32.itemsize + copied)


_HELD_BY_GRAPHS = 160 << 20
"""Graphs themselves, in as many places as are kept, and cuBLAS's workspace for captures."""
_ATTENTION_TOKEN_BYTES = 96 << 10
"""FlashAttention's deterministic backward pass: gradients of so many splits that they and the heads fill a device of
132 multiprocessors, in fp32, with heads of 128."""


_WIDENING_TOKENS = 512
"""Of a prompt whose attention is over an FP8 cache that is widened first, by the kernel for few rows."""


def training_graph_bytes(layout: AdapterLayout) -> int:
    """What CUDA graphs of a training's layer steps hold on a device at most: besides themselves, the temporary tensors
    of the largest, which has the widest linear's input and output with their gradients."""
    widths = (max(site.own_in_features, site.own_out_features) for site in layout.sites.values())
    token_bytes = 4 * max(widths) * layout.dtype.itemsize + _ATTENTION_TOKEN_BYTES
    return MOST_GRAPH_TOKENS * token_bytes + _HELD_BY_GRAPHS


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What bounds an iteration. graphs: the sizes that may be captured, in this order, the largest of all first; none
    without CUDA graphs. deterministic: all iterations are."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    graphs: Sequence[GraphSize]
    adapters: AdapterSizes = AdapterSizes()
    deterministic: bool = False


class WorstCase:
    """An iteration with the most tokens and the most sequences that one may have; each sequence draws by top-p.

    All sequences share the blocks of one: only the shapes matter, not the values.
    """

    def __init__(self, model: CausalLM, layout: KvLayout, device: torch.device, sizes: StepSizes) -> None:
        self._num_seqs = min(sizes.max_num_seqs, sizes.max_num_batched_tokens)
        self._length = min(sizes.max_num_batched_tokens // self._num_seqs, sizes.max_model_len)
        self._num_blocks = -(-self._length // layout.block_size)
        storage = KvStorage(layout, max(2, self._num_blocks), device)  # two: what warming up needs
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
        if not sizes.graphs:  # the largest of which is a long prompt, too
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
        """Compute it, and forget its sequences."""
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
    """Have the model's steps chosen, and tell where the device's memory goes: on a GPU that is measured by running the
    worst case. Used first, each kernel would be compiled by itself. So all are compiled side by side, the worst case's
    beside those that are timed, and then the few that only the choices have brought.

    choose: gives the model its methods (service/runner/choices/choosing.py); takes launches to be compiled beside its
    own.
    """
    num_ranks = model.parallel.size * model.stage.size
    if device.type == "cpu":
        choices = choose(lambda: None)
        phases.end("choices")
        return choices, profile_cpu(weights_bytes, cache.memory_bytes, num_ranks)
    worst_case = WorstCase(model, layout, device, replace(sizes, deterministic=False))
    choices = choose(worst_case.launch_kernels)
    phases.end("choices")
    if sizes.deterministic:  # it is known by now whether such steps are batched
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
        _table_bytes(layout, sizes) + sizes.adapters.table_bytes,
        sizes.adapters.training_bytes,
        sizes.adapters.moments_bytes,
    )
    del worst_case
    gc.collect()  # the runner that was measured and its graphs know each other
    torch.cuda.empty_cache()
    phases.end("profile")
    return choices, memory


def _table_bytes(layout: KvLayout, sizes: StepSizes) -> int:
    """Memory that grows with the sequences, besides their blocks: for each a row of the token counts and two of the
    block table (as many as ModelRunner makes)."""
    max_blocks = -(-sizes.max_model_len // layout.block_size) * layout.num_groups
    return DeviceBlockTable.num_bytes(2 * sizes.max_num_seqs + 1, max_blocks) + TokenCounts.num_bytes(
        sizes.max_num_seqs, sizes.vocab_size
    )
