"""From the settings to the parts of a served model: weights on the device, tokenizer, template, predictors."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from service.composition.cache_window import attention_window
from service.composition.ranks import ONE_RANK, Ranks
from service.composition.scheduler_defaults import NUM_SEQS, default_budget, default_num_seqs, default_waiting_tokens
from service.config import SchedulerConfig
from service.core.clock import Clock
from service.core.embedding import EmbedderConfig
from service.core.iteration import IterationPlan, IterationResult
from service.distributed.rank_task import RankTask
from service.engine.ports import Executor, TrainingExecutor
from service.errors import ConfigError
from service.kvcache.cache_room import CacheRoom
from service.metrics.recorder import Recorder
from service.models.model_folder import resolve_model_folder, resolve_tokenizer_folder
from service.models.pooling_config import load_embedder_config
from service.prediction.calibration import calibrate
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.swap_time import SwapTime
from service.prediction.transfer_calibration import calibrate_transfers
from service.scheduler.chunk_budget import USUAL_TOKENS
from service.settings.settings import Settings
from service.text.chat_template import ChatTemplate, load_chat_template
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.tokenizer import Tokenizer
from service.text.tokenizer_config import read_tokenizer_config

if TYPE_CHECKING:
    from service.distributed.rank_trainings import SharedTrainings
    from service.layers.pipeline_stage import RankPlace
    from service.lora.adapter_store import AdapterReader, HostAdapter
    from service.runner.load import LoadedModel

logger = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class ModelParts:
    """executor: runs plans on all ranks; training_executor: runs fine-tuning on all ranks. template: None if the model
    has no chat template. cost: the predictors, calibrated if a policy needs them. adapter_reader: for all ranks;
    None if no adapters are served. adapters: those of --lora-modules, by name. tokenizer_options: the fields of
    tokenizer_config.json. embedder: how the model embeds; None: it generates. trainings: for all ranks; None if one
    rank trains alone."""

    loaded: LoadedModel
    executor: Executor
    training_executor: TrainingExecutor
    tokenizer: Tokenizer
    template: ChatTemplate | None
    scheduler: SchedulerConfig
    cost: PreemptionCost
    adapter_reader: AdapterReader | None
    adapters: Mapping[str, HostAdapter]
    tokenizer_options: Mapping[str, object]
    embedder: EmbedderConfig | None = None
    trainings: SharedTrainings | None = None


def load_model_parts(settings: Settings, recorder: Recorder, clock: Clock, ranks: Ranks = ONE_RANK) -> ModelParts:
    """Takes seconds to minutes; any thread. The phases go to the recorder. Raises ModelLoadError, ConfigError.

    ranks: those that compute together, already started.
    """
    source = settings.model_source()
    folder = resolve_model_folder(source.model, source.revision, source.load_format)
    text_folder = folder if source.tokenizer is None else resolve_tokenizer_folder(source.tokenizer)
    embedder = _embedder(settings, folder)
    started_s = time.monotonic()
    # Imported here: torch takes seconds, and HTTP already answers 503 meanwhile.
    from service.layers.pipeline_stage import PlannedStage
    from service.layers.tensor_parallel import Planned
    from service.runner.device import choose_device, memory_bytes
    from service.runner.load import load_executor
    from service.runner.memory_profile import cpu_memory
    from service.runner.model_size import ModelSize

    phases = {"imports": time.monotonic() - started_s}
    started_s = time.monotonic()
    template = load_chat_template(text_folder, source.chat_template)
    _check_template_options(template, settings.default_chat_template_kwargs)
    device = choose_device(source.device)
    is_gpu, device_bytes = device.type == "cuda", memory_bytes(device)
    cache = settings.cache_config()
    parallel, num_seqs = settings.parallel_config(), NUM_SEQS
    if is_gpu:
        planned = Planned(parallel.tensor_size), PlannedStage(parallel.num_stages)
        size = ModelSize.of(source, folder, device, cache, *planned)
        num_seqs = default_num_seqs(device_bytes, size.weights_bytes, size.kv_token_bytes, cache)
    scheduler = settings.scheduler_config(
        num_seqs, default_budget(device_bytes, is_gpu=is_gpu), default_waiting_tokens(cpu_memory()[0])
    )
    sizes = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    enforce_eager = settings.enforce_eager or embedder is not None  # graphs are mainly for decodes
    phases["sizes"] = time.monotonic() - started_s
    started_s = time.monotonic()
    task = RankTask(
        source,
        folder,
        cache,
        *sizes,
        enforce_eager,
        settings.log_level,
        settings.log_format,
        settings.lora_config(),
        parallel,
        settings.choices,
    )

    def load(place: RankPlace) -> LoadedModel:
        return load_executor(
            source,
            folder,
            cache,
            *sizes,
            _ProgressLog(),
            enforce_eager=enforce_eager,
            choices_file=settings.choices,
            lora=settings.lora_config(),
            parallel=place.parallel,
            stage=place.stage,
        )

    loaded = ranks.load(task, load)
    executor = ranks.executor(loaded.runner, is_gpu=is_gpu)
    ranks.tell_captures(loaded.runner.replays)
    _record_phases(recorder, phases, loaded.phases, time.monotonic() - started_s, parallel.num_ranks)
    _log_sizes(loaded, scheduler, settings)
    if source.load_format == "dummy" and not (text_folder / "tokenizer.json").is_file():
        tokenizer = dummy_tokenizer(loaded.model_config.vocab_size)
    else:
        tokenizer = Tokenizer.from_folder(text_folder)
    cost = _make_cost(settings, loaded, executor, scheduler, recorder, clock)
    options = read_tokenizer_config(text_folder).options
    reader = None if loaded.adapters is None else ranks.adapters(loaded.adapters)
    rest = reader, _read_adapters(settings, reader), options, embedder, ranks.trainings()
    on_ranks = ranks.training_executor(loaded.runner.trainings, executor)
    return ModelParts(loaded, executor, on_ranks, tokenizer, template, scheduler, cost, *rest)


def _record_phases(
    recorder: Recorder, before: Mapping[str, float], loading: Mapping[str, float], model_s: float, num_ranks: int
) -> None:
    """Records the seconds before the model and of its loading, by phase. model_s: of the whole model, on all ranks."""
    recorder.record_startup("model", model_s)
    # With several ranks: until all have joined, and the last one is ready.
    joining = {} if num_ranks == 1 else {"ranks": model_s - sum(loading.values())}
    phases = {**before, **joining, **loading}
    for phase, seconds in phases.items():
        recorder.record_startup(phase, seconds)
    logger.info("loaded, seconds: %s", ", ".join(f"{phase} {s:.1f}" for phase, s in phases.items()))


def _embedder(settings: Settings, folder: Path) -> EmbedderConfig | None:
    embedder = load_embedder_config(folder)
    if embedder is not None and settings.enable_finetuning:
        raise ConfigError("enable-finetuning: this is an embedding model; only models that generate can be trained")
    return embedder


def _read_adapters(settings: Settings, reader: AdapterReader | None) -> dict[str, HostAdapter]:
    from service.lora.adapter_registry import read_modules

    config = settings.lora_config()
    if config is None or reader is None:
        return {}
    return read_modules(reader, config, settings.api_config().served_model_names)


def _check_template_options(template: ChatTemplate | None, options: Mapping[str, object]) -> None:
    for name in options:
        if template is None or not template.takes(name):
            raise ConfigError(f"default-chat-template-kwargs: the model's chat template does not use {name!r}")


def _make_cost(
    settings: Settings,
    loaded: LoadedModel,
    executor: Executor,
    scheduler: SchedulerConfig,
    recorder: Recorder,
    clock: Clock,
) -> PreemptionCost:
    """The predictors; calibrated now if something depends on them from the first request, else learned while
    serving."""
    iteration_time, swap_time = IterationTime(loaded.runner.replays.padded_size), SwapTime()
    is_asked = settings.preemption == "adaptive" or settings.inter_token_target_ms is not None
    if is_asked or settings.speculation != "none":
        started_s = time.monotonic()

        def execute(plan: IterationPlan) -> IterationResult:
            return executor.launch(plan).wait()

        num_blocks, num_host_blocks = loaded.num_blocks, loaded.num_host_blocks
        calibrate_transfers(execute, swap_time, clock, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
        calibrate(
            execute,
            iteration_time,
            clock,
            num_blocks=num_blocks,
            block_size=settings.block_size,
            max_tokens=scheduler.max_num_batched_tokens,
            max_model_len=loaded.max_model_len,
            max_num_seqs=scheduler.max_num_seqs,
            vocab_size=loaded.model_config.vocab_size,
            num_layer_groups=loaded.layer_groups.tables.size,
        )
        recorder.record_startup("calibration", time.monotonic() - started_s)
    # A preempted request is recomputed in iterations of the usual size, unless a deep queue waits behind it.
    return PreemptionCost(iteration_time, swap_time, min(scheduler.max_num_batched_tokens, USUAL_TOKENS))


def _log_sizes(loaded: LoadedModel, scheduler: SchedulerConfig, settings: Settings) -> None:
    groups, longest = loaded.layer_groups, loaded.max_model_len
    sizes, is_gpu = (groups, longest, scheduler.max_num_batched_tokens), loaded.device != "cpu"
    window = attention_window(settings, loaded.model_config, *sizes, is_gpu=is_gpu)
    room = CacheRoom(loaded.num_blocks, settings.block_size, window)
    if window is not None:
        logger.info(
            "KV cache by %d groups of at most %d layers: %d groups keep all tokens, %d a window of %d",
            groups.tables.size,
            groups.layers_each,
            *groups.tables,
            window.num_tokens,
        )
    logger.info("memory of %s: %s", loaded.device, loaded.memory)
    logger.info("choices: %s", loaded.choices)
    logger.info(
        "%s on %s (%s, %d threads); KV cache: %d tokens in %d blocks of %d (%.1f MiB);"
        " room for %d sequences of the full context of %d tokens; %d sequences and %d tokens an iteration,"
        " %d tokens waiting",
        loaded.model_config.architecture,
        loaded.device,
        loaded.dtype,
        loaded.num_threads,
        room.num_tokens,
        loaded.num_blocks,
        settings.block_size,
        loaded.num_blocks * loaded.block_bytes / 2**20,
        room.num_sequences(longest),
        longest,
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        scheduler.max_waiting_tokens,
    )


class _ProgressLog:
    """Logs the progress of loading, at most every two seconds and at the end of each phase."""

    def __init__(self) -> None:
        self._logged_s = 0.0

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if done_bytes >= total_bytes or now_s - self._logged_s > 2.0:
            self._logged_s = now_s
            logger.info("loading %s: %.0f of %.0f MB", phase, done_bytes / 1e6, total_bytes / 1e6)
