"""The model: whether it can be served, how much memory it takes, how many sequences fit beside it, its chat format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from service.composition.cache_window import attention_window
from service.composition.scheduler_defaults import NUM_SEQS, default_budget, default_num_seqs
from service.composition.start_checks import check_model_source
from service.config import CacheConfig, ParallelConfig
from service.doctor.finding import Finding, fault, ok, warning
from service.errors import ConfigError
from service.kvcache.cache_room import CacheRoom
from service.models.implementation import choose_implementation
from service.models.model_config import ModelConfig, load_model_config, read_config
from service.models.model_folder import local_folder
from service.settings.quickstart import QUICKSTART_NAME
from service.settings.settings import Settings

if TYPE_CHECKING:
    import torch

    from service.runner.model_size import ModelSize
    from service.runner.worst_case import StepSizes

_GIBIBYTE = 1 << 30


def check_model(settings: Settings) -> Iterator[Finding]:
    source = settings.model_source()
    try:
        check_model_source(source, settings.parallel_config())
        folder = local_folder(source.model, source.revision)
        if folder is None:
            yield _hub_model(source.model, source.revision)
            return
        config = config_of(settings, folder)
        shown = QUICKSTART_NAME if settings.model == QUICKSTART_NAME else str(folder)
        yield ok(
            "model", f"{shown}: {config.architecture}, {config.num_layers} layers, {config.vocab_size} tokens known"
        )
        yield from _check_room(settings, folder, config)
        yield from _check_text(settings, folder)
    except ConfigError as error:
        yield fault("model", str(error), "see the message; docs/troubleshooting.md has more on models that do not load")


def config_of(settings: Settings, folder: Path) -> ModelConfig:
    """Raises ModelLoadError. Takes seconds for a model that transformers' modules compute."""
    source = settings.model_source()
    wanted = source.implementation
    if choose_implementation(read_config(folder), wanted, source.quantization) == "native":
        return load_model_config(folder, source.quantization)
    from service.models.registry import open_model

    return open_model(folder, wanted).config


def _hub_model(model: str, revision: str | None) -> Finding:
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str):
        return ok("model", f"{model} is in the Hugging Face cache; a start looks up whether all of it is")
    found = f"{model} is not in the Hugging Face cache"
    return warning("model", found, "the start downloads it; without a network, give a local folder")


class Room(NamedTuple):
    """weights_bytes, kv_token_bytes: of the model. free_bytes: of the device, before it is loaded. kv_bytes: what is
    left for the KV cache by the settings, at most what adapters and the sequences of all batches in flight can fill; a
    start may have less, since it measures activations and graphs. cache: what that has room for, counted as a start
    counts it. adapter_bytes: what the most adapters at once, of the highest rank, take of the cache. max_model_len:
    tokens of the full context."""

    device: str
    weights_bytes: int
    kv_token_bytes: int
    free_bytes: int
    kv_bytes: int
    cache: CacheRoom
    adapter_bytes: int
    max_model_len: int


def room_for(settings: Settings, folder: Path, config: ModelConfig) -> Room:
    """config: of the model in the folder. Raises ModelLoadError, ConfigError."""
    from service.layers.pipeline_stage import PlannedStage
    from service.layers.tensor_parallel import Planned
    from service.runner.device import choose_device
    from service.runner.model_size import ModelSize

    source, cache, parallel = settings.model_source(), settings.cache_config(), settings.parallel_config()
    device = choose_device(source.device)
    planned = Planned(parallel.tensor_size), PlannedStage(parallel.num_stages)
    size = ModelSize.of(source, folder, device, cache, *planned, settings.lora_config())
    sizes, is_gpu = _step_sizes(settings, config, size, device), device.type == "cuda"
    free, kv_bytes = _gpu_memory(cache, size, sizes, device) if is_gpu else _cpu_memory(cache, size, parallel)
    lengths = size.max_model_len, sizes.max_num_batched_tokens
    window = attention_window(settings, config, size.groups, *lengths, is_gpu=is_gpu)
    block_bytes = size.layout.block_bytes
    kv_bytes = min(kv_bytes, sizes.most_filled_blocks(size.layout, parallel.num_stages) * block_bytes)
    return Room(
        device.type,
        size.weights_bytes,
        size.kv_token_bytes,
        free,
        kv_bytes,
        CacheRoom(max(0, kv_bytes) // block_bytes, cache.block_size, window),
        size.adapters.most_blocks * block_bytes,
        size.max_model_len,
    )


def _step_sizes(settings: Settings, config: ModelConfig, size: ModelSize, device: torch.device) -> StepSizes:
    from service.runner.device import memory_bytes
    from service.runner.worst_case import StepSizes

    is_gpu, device_bytes, num_seqs = device.type == "cuda", memory_bytes(device), NUM_SEQS
    if is_gpu:
        num_seqs = default_num_seqs(device_bytes, size.weights_bytes, size.kv_token_bytes, settings.cache_config())
    scheduler = settings.scheduler_config(num_seqs, default_budget(device_bytes, is_gpu=is_gpu), 1)
    limits = scheduler.max_num_seqs, scheduler.max_num_batched_tokens, size.max_model_len, config.vocab_size
    return StepSizes(*limits, graphs=(), adapters=size.adapters)


def _gpu_memory(cache: CacheConfig, size: ModelSize, sizes: StepSizes, device: torch.device) -> tuple[int, int]:
    """Bytes that are free, and those for the KV cache."""
    import torch

    from service.runner.memory_profile import share_with_training

    free, total = torch.cuda.mem_get_info(device)
    if cache.memory_bytes is not None:
        return free, cache.memory_bytes
    used = total - free + size.weights_bytes + sizes.table_bytes(size.layout)
    rest = int(cache.memory_utilization * total) - used
    training = size.adapters.training_bytes, size.adapters.moments_bytes
    return free, share_with_training(rest, *training).kv_cache_bytes


def _cpu_memory(cache: CacheConfig, size: ModelSize, parallel: ParallelConfig) -> tuple[int, int]:
    """As `_gpu_memory`."""
    from service.runner.memory_profile import cpu_memory, profile_cpu

    return cpu_memory()[1], profile_cpu(size.weights_bytes, cache.memory_bytes, parallel.num_ranks).kv_cache_bytes


def _check_room(settings: Settings, folder: Path, config: ModelConfig) -> Iterator[Finding]:
    room = room_for(settings, folder, config)
    weights = f"weights take {room.weights_bytes / _GIBIBYTE:.2f} GiB"
    if room.weights_bytes > room.free_bytes:
        found = f"{weights}, and {room.free_bytes / _GIBIBYTE:.2f} GiB of the {room.device}'s memory are free"
        yield fault("weights", found, "free some, or serve a smaller or a quantized model")
        return
    yield ok("weights", f"{weights} of {room.free_bytes / _GIBIBYTE:.2f} GiB that are free")
    length, cache = room.max_model_len, room.cache
    found = f"about {max(0, room.kv_bytes) / _GIBIBYTE:.2f} GiB,"
    found += f" {cache.num_tokens} tokens of {room.kv_token_bytes} bytes:"
    found += f" {cache.num_sequences(length)} sequences of the full context of {length}"
    if cache.window is not None:
        num_seen = sum(window is not None and window < length for window in config.sliding_windows)
        found += f", of which {num_seen} of {config.num_layers} layers keep the last {cache.window.num_tokens} only"
    if room.adapter_bytes:
        found += f"; adapters in use lie in it, and {settings.max_loras} of rank {settings.max_lora_rank} would take"
        found += f" {room.adapter_bytes / _GIBIBYTE:.2f} GiB"
    longest = cache.longest_sequence
    if cache.num_tokens < settings.block_size:
        mend = "raise --gpu-memory-utilization or --kv-cache-memory, or serve a smaller model"
        yield fault("kv cache", found, mend)
    elif longest is not None and longest < length:
        mend = f"the longest request that fits has {longest} tokens; say so by --max-model-len, or make room"
        yield warning("kv cache", found, mend)
    else:
        yield ok("kv cache", found)


def _check_text(settings: Settings, folder: Path) -> Iterator[Finding]:
    from service.text.chat_template import load_chat_template
    from service.text.tokenizer import Tokenizer

    source = settings.model_source()
    text_folder = folder if source.tokenizer is None else local_folder(source.tokenizer, None, "tokenizer") or folder
    if settings.load_format == "dummy" and not (text_folder / "tokenizer.json").is_file():
        yield ok("tokenizer", "a generated one, for dummy weights")
    else:
        yield ok("tokenizer", f"{Tokenizer.from_folder(text_folder).num_tokens} tokens")
    if load_chat_template(text_folder, source.chat_template) is None:
        yield warning("chat template", "none, so chat is refused", "give one by --chat-template, or serve a chat model")
    else:
        yield ok("chat template", "there is one")
