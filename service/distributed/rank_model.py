"""Loads a rank's part of the model. All ranks run the same code in the same order."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from service.core.training import Training
from service.distributed.process_groups import LOOPBACK, join_ranks, open_store
from service.distributed.rank_device import rank_device, reserved_bytes, stay_near
from service.distributed.rank_status import RankStatuses
from service.distributed.rank_task import HoldsAdapters, Inherited, RankModel, RankTask
from service.distributed.rank_trainings import RankTrainings
from service.distributed.settled_failures import SettledFailures
from service.distributed.told_captures import Capture
from service.engine.ports import Executor
from service.finetune.shared_training import read_training
from service.finetune.trained_model import graph_capture
from service.layers.pipeline_stage import is_first
from service.runner.load import load_executor

logger = logging.getLogger("headrace")


def load_rank(inherited: Inherited, task: RankTask) -> RankModel:
    """Raises ConfigError or ModelLoadError as `load_executor` does, and torch's errors if another rank is gone."""
    rank = inherited.rank
    device = rank_device(task.source.device, inherited.seat, inherited.num_local)
    stay_near(device, inherited.num_local)
    statuses = RankStatuses(inherited.statuses, inherited.num_ranks)
    note_exchange = partial(statuses.note_exchange, rank)
    store = open_store(task.meeting, f"/proc/self/fd/{inherited.meeting_point}", inherited.num_ranks)
    interface = LOOPBACK if task.meeting is None else task.meeting.interface
    place = join_ranks(rank, task.parallel, store, device, note_exchange, interface)
    loaded = load_executor(
        task.source,
        task.folder,
        task.cache,
        task.max_num_seqs,
        task.max_num_batched_tokens,
        enforce_eager=task.enforce_eager,
        choices_file=task.choices,
        lora=task.lora,
        parallel=place.parallel,
        stage=place.stage,
    )
    logger.info("memory of %s: %s", device, loaded.memory)
    embeds_draws = place.stage.size > 1 and is_first(place.stage)
    executor: Executor = SettledFailures(loaded.runner) if device.type == "cuda" else loaded.runner
    adapters: HoldsAdapters | None = loaded.adapters
    if task.lora is not None and task.lora.trains and adapters is not None:
        graphs = graph_capture(loaded.model, enforce_eager=task.enforce_eager)

        def read(file: Path) -> Training:
            return read_training(file, loaded.model).training(loaded.model, graphs, tells_news=False)

        note, is_stage = partial(statuses.note_training, rank), place.parallel.size == 1
        executor = adapters = RankTrainings(adapters, executor, loaded.runner.trainings, read, note, is_stage=is_stage)

    def capture(told: Capture) -> None:
        loaded.runner.replays.capture(told.sizes, adapters=told.adapters, asked=told.asked)

    return RankModel(
        executor,
        loaded.memory.kv_cache_bytes,
        lambda: reserved_bytes(device),
        device.type == "cuda",
        adapters,
        loaded.runner.note_drawn if embeds_draws else None,
        capture,
    )
