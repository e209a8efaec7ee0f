"""From a model folder to an executor: the one place that assembles the runner, for `composition` and for tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Literal

import torch

from kernels.compile_ahead import hash_triton
from service.config import CacheConfig, LoraConfig, ModelSource
from service.core.layer_groups import LayerGroups
from service.errors import ConfigError, ModelLoadError
from service.layers.pipeline_stage import WHOLE, PipelineStage, RankPlace, is_last
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.lora.adapter_layout import AdapterLayout
from service.lora.adapter_store import AdapterStore
from service.models.causal_lm import CausalLM
from service.models.context_length import context_length
from service.models.dummy_weights import fill_with_dummy_weights
from service.models.generation_config import GenerationConfig, load_generation_config
from service.models.model_config import ModelConfig
from service.models.quantization import Quantization, check_trains
from service.models.quantized_model import made_plain, store_for_device
from service.models.registry import OpenedModel, open_model
from service.models.weight_loader import load_weights, non_finite_weights
from service.models.weights_revision import weights_revision
from service.runner.adapter_sites import adapter_layout, adapter_sizes, other_stages
from service.runner.adapter_tables import AdapterTables
from service.runner.choices.choices_file import ChoicesFile, choices_of_stage
from service.runner.choices.choosing import choose_steps
from service.runner.choices.made_for import MadeFor
from service.runner.choices.number_format import choose_dtype
from service.runner.choices.step_choices import StepChoices
from service.runner.choices.timer import Timer, timer_of
from service.runner.device import choose_device, use_cores
from service.runner.finite_logits import has_finite_logits
from service.runner.graph_sizes import GraphSize, common_sizes, graph_sizes
from service.runner.host_blocks import Fp8HostBlocks, HostBlocks, PlainHostBlocks
from service.runner.host_memory import keep_freed_memory
from service.runner.idle_capture import IdleCapture, IdleWorks
from service.runner.kv_storage import KvLayout, KvStorage, layer_groups
from service.runner.load_phases import LoadPhases
from service.runner.memory_profile import GIBIBYTE, MemoryLedger, cpu_memory
from service.runner.model_runner import ModelRunner
from service.runner.warm_up import warm_up
from service.runner.worst_case import StepSizes, choose_and_measure

logger = logging.getLogger("headrace")

_FP8_CAPABILITY = (8, 9)
"""The first compute capability with e4m3."""

OnProgress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all), from any thread, one call at a time."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to serve, and the facts measured on the way.

    model: the one that the runner computes with. choices: what was chosen by timing. idle_work: graphs that the first
    requests can do without. block_bytes: of a KV block on the device. host_block_bytes: of a swapped block.
    max_model_len: most tokens of a sequence by the model and the configuration (the cache may hold fewer). num_threads:
    of torch's operations on the CPU. weights: a name that changes with the weights. adapters: the store that they are
    read into; None if none are served. phases: seconds of each part of loading, in order.
    """

    runner: ModelRunner
    model: CausalLM
    choices: StepChoices
    idle_work: IdleWorks
    model_config: ModelConfig
    generation: GenerationConfig
    max_model_len: int
    num_blocks: int
    layer_groups: LayerGroups
    num_host_blocks: int
    block_bytes: int
    host_block_bytes: int
    dtype: Literal["bfloat16", "float32"]
    device: str
    num_threads: int
    memory: MemoryLedger
    weights: str
    adapters: AdapterStore | None
    phases: Mapping[str, float]

    @property
    def batches_deterministic(self) -> bool:
        """As of `Replays`."""
        return self.runner.replays.batches_deterministic

    @property
    def quantization(self) -> str | None:
        """The name of the weights' format; None: plain."""
        quantization = self.model_config.quantization
        return None if quantization is None else quantization.name


def load_executor(
    source: ModelSource,
    folder: Path,
    cache: CacheConfig,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    on_progress: OnProgress | None = None,
    enforce_eager: bool = False,
    choices_file: Path | None = None,
    timer: Timer | None = None,
    lora: LoraConfig | None = None,
    parallel: TensorParallel = ALONE,
    stage: PipelineStage = WHOLE,
) -> LoadedModel:
    """Load, size the cache, warm up. Raises ModelLoadError or ConfigError naming the file, field or setting.

    enforce_eager: no CUDA graphs, and on a CPU no recorded steps. choices_file: the choices of an earlier start, used
    without any timing; written if it does not exist yet. timer: what choices are timed with; None: the device's own.
    lora: None: no adapters are served. parallel: the ranks that compute the model together. All of them call this with
    the same arguments and then carry out the same plans; the first one chooses for all. Each has its part of the
    weights and of every block, and as many blocks as the others. stage: likewise, but each stage makes its own choices
    (`choices_of_stage`).
    """
    place = RankPlace(parallel, stage)
    phases = LoadPhases()
    file = _choices_file(choices_file, place)
    config, model = _opened(source, folder, lora, place)
    generation = load_generation_config(folder, config)
    max_model_len = context_length(config, source.max_model_len)
    device = _chosen_device(source, cache)
    num_threads = _use_host(device, place.num_ranks)
    timer = timer or timer_of(device)
    dtype = _chosen_dtype(source, file, device, config, timer, place)
    graphs = _graphs(device, max_num_seqs, max_num_batched_tokens, enforce_eager=enforce_eager)
    limits = max_num_seqs, max_num_batched_tokens, max_model_len, config.vocab_size
    sizes = StepSizes(*limits, graphs, deterministic=source.deterministic)
    unread = _store_quantized(model, config.quantization, device, dtype)
    made_for = _made_for(model, config, device, dtype, sizes, source, enforce_eager=enforce_eager)
    known = file.fitting(made_for, graphs)
    weights_bytes = _load_weights(model, source, folder, dtype, device, max_model_len, phases, on_progress, unread)
    twice = _fits_twice(weights_bytes, device)
    choose = partial(choose_steps, model, made_for, known, device, graphs, timer, in_two_forms=twice)
    groups, layout = _layout(config, cache, dtype, place, max_model_len)
    adapters = None if lora is None else adapter_layout(model, layout, lora, other_stages(source, folder, place))
    sizes = sizes if adapters is None or lora is None else replace(sizes, adapters=adapter_sizes(adapters, lora))
    choices, memory = choose_and_measure(choose, model, layout, device, weights_bytes, cache, sizes, phases)
    if known is None:
        file.keep(choices)
    num_blocks = _num_blocks(memory, layout, sizes, place)
    host_blocks = _host_blocks(layout, cache, num_blocks, device, place.num_ranks)
    storage, store = KvStorage(layout, num_blocks, device), _store(adapters, device)
    tables = None if store is None else AdapterTables(model.block_linears(), storage, store, sizes.adapters.num_slots)
    numbers = (max_num_seqs, max_model_len, config.vocab_size)
    runner = ModelRunner(model, storage, device, *numbers, host_blocks, tables, all_deterministic=source.deterministic)
    _prepare(runner, records=device.type == "cpu" and not enforce_eager and place.num_ranks == 1)
    phases.end("cache")
    warm_up(runner)
    _check_can_answer(runner, source, folder, num_blocks, layout, sizes)
    phases.end("warm-up")
    return LoadedModel(
        runner=runner,
        model=model,
        choices=choices,
        idle_work=_capture_graphs(runner, choices, phases, stage, has_file=choices_file is not None),
        model_config=config,
        generation=generation,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        layer_groups=groups,
        num_host_blocks=len(host_blocks),
        block_bytes=layout.block_bytes,
        host_block_bytes=host_blocks.block_bytes(layout),
        dtype="bfloat16" if dtype is torch.bfloat16 else "float32",
        device=str(device),
        num_threads=num_threads,
        memory=replace(memory, kv_cache_bytes=num_blocks * layout.block_bytes),
        adapters=store,
        weights=f"seed {source.seed}" if source.load_format == "dummy" else weights_revision(folder),
        phases=phases.seconds,
    )


def _use_host(device: torch.device, num_ranks: int) -> int:
    """Call `use_cores`; on a GPU also start hashing Triton in a thread, because compiling waits for it."""
    if device.type == "cuda":
        Thread(target=hash_triton, name="hash", daemon=True).start()
    return use_cores(device, num_ranks)


def _prepare(runner: ModelRunner, *, records: bool) -> None:
    if records:
        runner.replays.record()
    if runner.all_deterministic and not runner.replays.batches_deterministic:
        logger.warning(
            "deterministic: this model cannot be computed in deterministic batches here; a step computes token by token"
        )


def _choices_file(path: Path | None, place: RankPlace) -> ChoicesFile:
    is_asked = path is not None and place.parallel.rank == 0
    return ChoicesFile(choices_of_stage(path, place.stage) if is_asked and path is not None else None)


def _chosen_dtype(
    source: ModelSource,
    file: ChoicesFile,
    device: torch.device,
    config: ModelConfig,
    timer: Timer,
    place: RankPlace,
) -> torch.dtype:
    """Chosen by one rank for all: rank 0 of the last stage."""
    chosen = ""
    if place.parallel.rank == 0 and is_last(place.stage):
        requested = source.dtype if file.kept is None or source.dtype != "auto" else file.kept.made_for.dtype
        dtype = choose_dtype(requested, device, config.checkpoint_dtype, timer)
        chosen = "bfloat16" if dtype is torch.bfloat16 else "float32"
    chosen = place.stage.of_last(place.parallel.of_first(chosen))
    return torch.bfloat16 if chosen == "bfloat16" else torch.float32


def _opened(source: ModelSource, folder: Path, lora: LoraConfig | None, place: RankPlace) -> OpenedModel:
    """If adapters are trained, a CPU keeps the plain weights beside those that it packs."""
    opened = open_model(folder, source.implementation, place.parallel, source.quantization, place.stage)
    if lora is not None and lora.trains:
        check_trains(opened.config.quantization)
        for projection in opened.model.projections:
            projection.keep_plain_weight()
    return opened


def _graphs(
    device: torch.device, max_num_seqs: int, max_num_batched_tokens: int, *, enforce_eager: bool
) -> list[GraphSize]:
    """Sizes that may have a CUDA graph."""
    if device.type != "cuda" or enforce_eager:
        return []
    return graph_sizes(max_num_seqs, max_num_batched_tokens)


def _made_for(
    model: CausalLM,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    sizes: StepSizes,
    source: ModelSource,
    *,
    enforce_eager: bool,
) -> MadeFor:
    return MadeFor.of(
        model,
        config.architecture,
        device,
        dtype,
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        enforce_eager=enforce_eager,
        deterministic=source.deterministic,
    )


def _store_quantized(
    model: CausalLM, quantization: Quantization | None, device: torch.device, dtype: torch.dtype
) -> AbstractSet[str]:
    """Returns the names in the checkpoint that are not read."""
    if quantization is None:
        return frozenset()
    unread = store_for_device(model, quantization, device, dtype)
    plain = made_plain(model, dtype, device)
    how = f"dequantized on the CPU: {plain}" if plain else "kept quantized"
    if plain and device.type != "cpu":
        how = (
            f"dequantized at load, since no GPU kernel reads int8: {plain}; memory and speed are those of plain weights"
        )
    if quantization.is_dequantized_at_load:
        how = "dequantized while they are read: memory and speed are those of an unquantized model"
    logger.info("weights: quantized, %s; %s", quantization.name, how)
    return unread


def _load_weights(
    model: CausalLM,
    source: ModelSource,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    phases: LoadPhases,
    on_progress: OnProgress | None,
    unread: AbstractSet[str],
) -> int:
    """Load the weights onto the device and build the positions; returns the weights' bytes. unread: names in the
    checkpoint that are not read."""
    if device.type == "cpu":
        keep_freed_memory()
    weights_bytes = model.weights_bytes(dtype, device)
    _check_weights_fit(weights_bytes, device, RankPlace(model.parallel, model.stage).num_ranks)
    model.materialize(dtype, device)
    phases.end("device")
    if source.load_format == "dummy":
        fill_with_dummy_weights(model, source.seed)
    else:
        is_torch = source.load_format == "pt"
        load_weights(model, folder, _phase("weights", on_progress), torch_format=is_torch, unread=unread)
    model.finish_reading(dtype)
    if device.type == "cpu":
        model.fit_cpu(dtype)
    phases.end("weights")
    model.build_positions(max_model_len, device)
    return weights_bytes


def _capture_graphs(
    runner: ModelRunner, choices: StepChoices, phases: LoadPhases, stage: PipelineStage, *, has_file: bool
) -> IdleWorks:
    """Capture the graphs that the first requests need. Returns the capture of the others, and of those of steps with
    adapters, as idle work.

    All are captured here if the choices have a file, because equal steps are to round alike from the first one on
    (`StepChoices`), and in pipeline stages, whose graphs have different sizes.
    """
    if not choices.graphs:
        return IdleWorks(())
    all_at_once = has_file or stage.size > 1
    common = common_sizes(choices.made_for.max_num_seqs, choices.made_for.max_num_batched_tokens)
    first = [size for size in choices.graphs if all_at_once or size in common]
    rest = [size for size in choices.graphs if size not in first]
    replays = runner.replays
    replays.capture(first)
    works = [IdleCapture(replays.capture, rest, replays.recent_steps)]
    if runner.adapters is not None:
        capture = partial(replays.capture, adapters=True)
        if all_at_once:
            capture(first)
        else:
            seen = partial(replays.recent_steps, adapters=True)
            works.append(IdleCapture(capture, first + rest, seen, "adapters'"))
    if replays.captures_asked:
        capture_asked, seen = partial(replays.capture, asked=True), partial(replays.recent_steps, asked=True)
        works.append(IdleCapture(capture_asked, first + rest, seen, "deterministic", once_seen=True))
    phases.end("graphs")
    return IdleWorks(works)


def _store(adapters: AdapterLayout | None, device: torch.device) -> AdapterStore | None:
    return None if adapters is None else AdapterStore(adapters, pinned=device.type == "cuda")


def _check_can_answer(
    runner: ModelRunner, source: ModelSource, folder: Path, num_blocks: int, layout: KvLayout, sizes: StepSizes
) -> None:
    """Without finite logits every request would fail. Only then the weights at fault are looked for."""
    most_prompts = min(num_blocks // layout.num_groups, sizes.max_num_seqs, sizes.max_num_batched_tokens // 2)
    if has_finite_logits(runner, most_prompts=most_prompts, block_size=layout.block_size, vocab_size=sizes.vocab_size):
        return
    damaged = "" if source.load_format == "dummy" else non_finite_weights(folder)
    why = f"NaN or infinity in {damaged}" if damaged else "its values overflow (see dtype)"
    raise ModelLoadError(f"model: its logits are not finite, so it cannot answer any request: {why}")


def _host_blocks(
    layout: KvLayout, cache: CacheConfig, num_blocks: int, device: torch.device, num_ranks: int
) -> HostBlocks:
    """Raises ConfigError if the host has no room for them and, on a CPU, for the device's blocks."""
    _check_cache_fits(layout, cache, num_blocks, device, num_ranks)
    kind = _kind_of_host_blocks(cache)
    return kind(layout, _num_host_blocks(layout, cache, num_blocks, num_ranks), pinned=device.type == "cuda")


def _num_host_blocks(layout: KvLayout, cache: CacheConfig, num_blocks: int, num_ranks: int) -> int:
    """How many blocks fit into this rank's part of the swap space, at most as many as the device has."""
    return min(cache.swap_bytes // num_ranks // _kind_of_host_blocks(cache).block_bytes(layout), num_blocks)


def _kind_of_host_blocks(cache: CacheConfig) -> type[PlainHostBlocks] | type[Fp8HostBlocks]:
    """An fp8 cache is swapped as it is, so what comes back is exactly what was swapped out."""
    return Fp8HostBlocks if cache.swap_compression == "fp8" and cache.dtype != "fp8" else PlainHostBlocks


def _phase(name: str, on_progress: OnProgress | None) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(name, done, total)


def _check_weights_fit(weights_bytes: int, device: torch.device, num_ranks: int) -> None:
    """Checked before the memory is taken: a CPU's system may promise memory that it does not have, and then kills the
    process."""
    free = cpu_memory()[1] // num_ranks if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if weights_bytes > free:
        raise ModelLoadError(
            f"model: the weights take {weights_bytes / GIBIBYTE:.1f} GiB, but only {free / GIBIBYTE:.1f} GiB of the "
            f"{device}'s memory are free"
        )


def _check_cache_fits(
    layout: KvLayout, cache: CacheConfig, num_blocks: int, device: torch.device, num_ranks: int
) -> None:
    """Like `_check_weights_fit`, for the blocks in the host's memory."""
    num_host_blocks = _num_host_blocks(layout, cache, num_blocks, num_ranks)
    swap_bytes = num_host_blocks * _kind_of_host_blocks(cache).block_bytes(layout)
    cache_bytes = num_blocks * layout.block_bytes if device.type == "cpu" else 0
    free = cpu_memory()[1] // num_ranks
    if cache_bytes + swap_bytes > free:
        name = "kv-cache-memory" if cache_bytes else "swap-space"
        raise ConfigError(
            f"{name}: on the host, KV cache and swap space take {(cache_bytes + swap_bytes) / GIBIBYTE:.1f} GiB, "
            f"but only {free / GIBIBYTE:.1f} GiB are free"
        )


def _chosen_device(source: ModelSource, cache: CacheConfig) -> torch.device:
    """Raises ConfigError if the device's kernels do not support the cache's dtype."""
    device = choose_device(source.device)
    if cache.dtype == "fp8" and device.type == "cuda":
        _check_fp8_cache(device)
    return device


def _check_fp8_cache(device: torch.device) -> None:
    found = torch.cuda.get_device_capability(device)
    if found < _FP8_CAPABILITY:
        needed, there = (".".join(map(str, each)) for each in (_FP8_CAPABILITY, found))
        raise ConfigError(f"kv-cache-dtype: fp8 needs a GPU of compute capability {needed}; this one has {there}")


def _fits_twice(weights_bytes: int, device: torch.device) -> bool:
    """Whether a second form of the weights takes at most a quarter of the host's free memory."""
    return device.type == "cpu" and weights_bytes <= cpu_memory()[1] // 4


def _layout(
    config: ModelConfig, cache: CacheConfig, dtype: torch.dtype, place: RankPlace, max_model_len: int
) -> tuple[LayerGroups, KvLayout]:
    groups, is_fp8 = layer_groups(config, max_model_len, cache, place.stage), cache.dtype == "fp8"
    sizes = place.parallel.size, place.stage.size
    return groups, KvLayout.of(config, cache.block_size, dtype, *sizes, is_fp8=is_fp8, groups=groups)


def _num_blocks(memory: MemoryLedger, layout: KvLayout, sizes: StepSizes, place: RankPlace) -> int:
    """How many blocks fit into the memory of every rank; at most as many as can ever be filled."""
    usable = sizes.most_filled_blocks(layout, place.stage.size)
    num_blocks = place.stage.least(place.parallel.least(min(memory.kv_cache_bytes // layout.block_bytes, usable)))
    if num_blocks < 1:
        raise ConfigError(
            f"kv-cache-memory: {max(0, memory.kv_cache_bytes)} bytes are left for the KV cache, but one block of "
            f"{layout.block_size} tokens takes {layout.block_bytes}; weights take {memory.weights_bytes}, an iteration "
            f"{memory.activations_bytes}, CUDA graphs {memory.graphs_bytes} (see gpu-memory-utilization, "
            "max-num-batched-tokens, enforce-eager)"
        )
    return num_blocks
