"""From a model folder to an executor: the runner's one assembly, for `composition` and for tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from kernels.compile_ahead import compile_ahead
from service.config import CacheConfig, ModelSource
from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.errors import ConfigError, ModelLoadError
from service.models.causal_lm import CausalLM
from service.models.dummy_weights import fill_with_dummy_weights
from service.models.generation_config import GenerationConfig, load_generation_config
from service.models.model_config import ModelConfig, load_model_config
from service.models.registry import build_model
from service.models.weight_loader import load_weights
from service.models.weights_revision import weights_revision
from service.runner.cuda_graphs import GraphSize, common_sizes, graph_sizes
from service.runner.device import choose_device, choose_dtype, use_cores
from service.runner.device_block_table import DeviceBlockTable
from service.runner.host_blocks import Fp8HostBlocks, HostBlocks, PlainHostBlocks
from service.runner.host_memory import keep_freed_memory
from service.runner.idle_capture import IdleCapture
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.load_phases import LoadPhases
from service.runner.memory_profile import GIBIBYTE, MemoryLedger, cpu_memory, profile_cpu, profile_cuda
from service.runner.model_runner import ModelRunner
from service.sampling.token_counts import TokenCounts

OnProgress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all), from any thread, one call at a time."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to serve, and the facts measured on the way.

    idle_work: graphs that the first requests can do without. block_bytes, host_block_bytes: of a KV block on the
    device, and of one that is swapped.
    max_model_len: tokens that one sequence may have by the model and the configuration (the cache may hold fewer).
    num_threads: of torch's operations on the CPU. weights: a name that changes with the weights. phases: seconds of
    each part of loading, in order.
    """

    runner: ModelRunner
    idle_work: IdleCapture
    model_config: ModelConfig
    generation: GenerationConfig
    max_model_len: int
    num_blocks: int
    num_host_blocks: int
    block_bytes: int
    host_block_bytes: int
    dtype: Literal["bfloat16", "float32"]
    device: str
    num_threads: int
    memory: MemoryLedger
    weights: str
    phases: Mapping[str, float]


def load_executor(
    source: ModelSource,
    folder: Path,
    cache: CacheConfig,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    on_progress: OnProgress | None = None,
    enforce_eager: bool = False,
) -> LoadedModel:
    """Load, size the cache, warm up. Raises ModelLoadError or ConfigError naming the file, field or setting.

    enforce_eager: no CUDA graphs.
    """
    phases = LoadPhases()
    config = load_model_config(folder)
    generation = load_generation_config(folder, config)
    max_model_len = _max_model_len(source, config)
    device = choose_device(source.device)
    num_threads = use_cores(device)
    dtype = choose_dtype(source.dtype, device, config.checkpoint_dtype)
    if device.type == "cpu":
        keep_freed_memory()

    model = build_model(config)
    weights_bytes = sum(t.numel() * dtype.itemsize for t in model.checkpoint_tensors().values())
    _check_weights_fit(weights_bytes, device)
    model.materialize(dtype, device)
    phases.end("device")
    if source.load_format == "dummy":
        fill_with_dummy_weights(model, source.seed)
    else:
        load_weights(model, folder, _phase("weights", on_progress))
    phases.end("weights")
    model.prepare(max_model_len, device, keeps_plain=_fits_twice(weights_bytes, device))
    phases.end("prepare")

    layout = KvLayout.of(config, cache.block_size, dtype)
    graphs = graph_sizes(max_num_seqs, max_num_batched_tokens) if device.type == "cuda" and not enforce_eager else []
    sizes = _Sizes(max_num_seqs, max_num_batched_tokens, max_model_len, config.vocab_size, graphs)
    memory = _profile(model, layout, device, weights_bytes, cache, sizes, phases)
    num_blocks = _num_blocks(memory, layout, sizes)
    storage = KvStorage(layout, num_blocks, device)
    host_blocks = _host_blocks(layout, cache, num_blocks, pinned=device.type == "cuda")
    runner = ModelRunner(model, storage, device, max_num_seqs, max_model_len, config.vocab_size, host_blocks)
    phases.end("cache")
    runner.warm_up()
    phases.end("warm-up")
    at_start = len(common_sizes(max_num_seqs, max_num_batched_tokens)) if graphs else 0
    if graphs:
        runner.capture_graphs(graphs[:at_start])
        phases.end("graphs")
    return LoadedModel(
        runner=runner,
        idle_work=IdleCapture(runner.capture_graphs, graphs[at_start:]),
        model_config=config,
        generation=generation,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        num_host_blocks=len(host_blocks),
        block_bytes=layout.block_bytes,
        host_block_bytes=host_blocks.block_bytes(layout),
        dtype="bfloat16" if dtype is torch.bfloat16 else "float32",
        device=str(device),
        num_threads=num_threads,
        memory=memory,
        weights=f"seed {source.seed}" if source.load_format == "dummy" else weights_revision(folder),
        phases=phases.seconds,
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    graphs: Sequence[GraphSize]


def _host_blocks(layout: KvLayout, cache: CacheConfig, num_blocks: int, *, pinned: bool) -> HostBlocks:
    """As many as the swap space holds, and no more than the device has."""
    kind = Fp8HostBlocks if cache.swap_compression == "fp8" else PlainHostBlocks
    return kind(layout, min(cache.swap_bytes // kind.block_bytes(layout), num_blocks), pinned=pinned)


def _phase(name: str, on_progress: OnProgress | None) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(name, done, total)


def _max_model_len(source: ModelSource, config: ModelConfig) -> int:
    if source.max_model_len is None:
        return config.max_position_embeddings
    if source.max_model_len > config.longest_context:
        raise ModelLoadError(
            f"max-model-len: {source.max_model_len} exceeds the model's own context of {config.longest_context}"
        )
    return source.max_model_len


def _check_weights_fit(weights_bytes: int, device: torch.device) -> None:
    """Before the memory is taken: a CPU's may be promised and then not be there, which ends the process unheard."""
    free = cpu_memory()[1] if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if weights_bytes > free:
        raise ModelLoadError(
            f"model: its weights take {weights_bytes / GIBIBYTE:.1f} GiB, {free / GIBIBYTE:.1f} GiB of the {device}'s "
            "memory are free"
        )


def _fits_twice(weights_bytes: int, device: torch.device) -> bool:
    """Whether a second form of the weights would take little of the host's memory: a quarter of what is free."""
    return device.type == "cpu" and weights_bytes <= cpu_memory()[1] // 4


def _profile(
    model: CausalLM,
    layout: KvLayout,
    device: torch.device,
    weights_bytes: int,
    cache: CacheConfig,
    sizes: _Sizes,
    phases: LoadPhases,
) -> MemoryLedger:
    if device.type == "cpu":
        return profile_cpu(weights_bytes, cache.memory_bytes)

    worst_case = _WorstCase(model, layout, device, sizes)
    _compile_kernels(worst_case, sizes.graphs)
    phases.end("kernels")
    memory = profile_cuda(
        device,
        weights_bytes,
        cache.memory_utilization,
        cache.memory_bytes,
        worst_case.run,
        worst_case.runner.capture_graphs,
        sizes.graphs,
        _table_bytes(layout, sizes),
    )
    del worst_case
    gc.collect()  # the runner that was measured and its graphs know each other
    torch.cuda.empty_cache()
    phases.end("profile")
    return memory


def _table_bytes(layout: KvLayout, sizes: _Sizes) -> int:
    """Of what grows with the sequences beside their blocks: a row each of the block table (twice, as in ModelRunner)
    and of the token counts."""
    max_blocks = -(-sizes.max_model_len // layout.block_size)
    return DeviceBlockTable.num_bytes(2 * sizes.max_num_seqs + 1, max_blocks) + TokenCounts.num_bytes(
        sizes.max_num_seqs, sizes.vocab_size
    )


class _WorstCase:
    """An iteration of as many tokens as one may have, in as many sequences, each of which draws from all its logits.

    All sequences share the blocks of one: the shapes count, not the values.
    """

    def __init__(self, model: CausalLM, layout: KvLayout, device: torch.device, sizes: _Sizes) -> None:
        self._num_seqs = min(sizes.max_num_seqs, sizes.max_num_batched_tokens)
        self._length = min(sizes.max_num_batched_tokens // self._num_seqs, sizes.max_model_len)
        self._num_blocks = -(-self._length // layout.block_size)
        storage = KvStorage(layout, max(2, self._num_blocks), device)  # two: what warming up needs
        self.runner = ModelRunner(model, storage, device, self._num_seqs, sizes.max_model_len, sizes.vocab_size)

    def run(self) -> None:
        params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)
        blocks, token_ids = tuple(range(self._num_blocks)), (0,) * self._length
        shares = (ScheduledSequence(i, token_ids, 0, 0, blocks, params, (Sample(i, i),)) for i in range(self._num_seqs))
        self.runner.launch(IterationPlan(tuple(shares))).wait()
        self.runner.launch(IterationPlan((), released=tuple(range(self._num_seqs)))).wait()


def _compile_kernels(worst_case: _WorstCase, graphs: Sequence[GraphSize]) -> None:
    """All that iterations need: what follows would compile them one after the other."""

    def launch() -> None:
        worst_case.run()
        worst_case.runner.warm_up()
        for size in graphs[:1]:
            worst_case.runner.compute_padding(size)

    compile_ahead(launch)


def _num_blocks(memory: MemoryLedger, layout: KvLayout, sizes: _Sizes) -> int:
    """What the memory holds, but no more than the sequences of one iteration can ever fill."""
    usable = sizes.max_num_seqs * -(-sizes.max_model_len // layout.block_size)
    num_blocks = min(memory.kv_cache_bytes // layout.block_bytes, usable)
    if num_blocks < 1:
        raise ConfigError(
            f"kv-cache-memory: {max(0, memory.kv_cache_bytes)} bytes are there for it, one block of "
            f"{layout.block_size} tokens takes {layout.block_bytes}; weights take {memory.weights_bytes}, an iteration "
            f"{memory.activations_bytes}, CUDA graphs {memory.graphs_bytes} (see gpu-memory-utilization, "
            "max-num-batched-tokens, enforce-eager)"
        )
    return num_blocks
