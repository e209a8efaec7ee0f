"""From a loaded model and the storage to fine-tuning, if it is enabled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from service.composition.model_parts import ModelParts
from service.engine.async_engine import AsyncEngine
from service.errors import InvalidRequest
from service.finetune.fine_tuning import FineTuning
from service.finetune.job_folders import JobFolders
from service.finetune.job_runner import JobRunner
from service.finetune.job_training import JobTools
from service.finetune.jobs import FineTuningJobs
from service.finetune.models import FineTunedModels
from service.finetune.served_base import ServedBase
from service.finetune.training_text import ModelText
from service.metrics.recorder import Recorder
from service.process.daemon_thread import in_daemon_thread
from service.settings.settings import Settings
from service.storage.storage import Storage

if TYPE_CHECKING:
    from service.lora.adapter_registry import AdapterRegistry
    from service.runner.load import LoadedModel

USUAL_TOKENS_ON_GPU, USUAL_TOKENS_ON_CPU = 2048, 512
"""Tokens of a micro-batch, and so the most of an example, unless a job sets it: enough to keep a GPU busy, and less
than a second on a CPU."""
_PROBE_TOKENS = 1024
_PACKED_SHARE = 0.5
"""The fraction of the KV blocks that micro-batches of several examples take at most: a larger arena is available only
while next to no requests run (scheduler/arena_lending.py), and on a small KV cache an interleaved job would starve."""


def make_fine_tuning(
    settings: Settings,
    parts: ModelParts,
    engine: AsyncEngine,
    adapters: AdapterRegistry,
    storage: Storage,
    recorder: Recorder,
) -> tuple[FineTuning, JobRunner]:
    """Also returns the runner of the jobs, which is not started yet. Event-loop thread."""
    from service.finetune.lora_job_work import LoraJobWork  # uses tensors: torch is loaded by now

    in_thread = partial(in_daemon_thread, name="fine-tuning")
    base = served_base(settings, parts.loaded)
    jobs = FineTuningJobs(storage.database, base.weights, recorder.record_jobs)
    models = FineTunedModels(
        storage.database, storage.folder / "models", storage.budget, adapters, base.weights, in_thread
    )
    work = LoraJobWork(
        parts.loaded.model,
        model_text(settings, parts),
        base,
        adapters.folder_of,
        enforce_eager=settings.enforce_eager,
        moments_on_host=parts.loaded.memory.has_moments_on_host,
        share=None if parts.trainings is None else parts.trainings.share,
        is_serving=lambda: engine.num_live > 0,
    )
    folders = JobFolders(storage.folder / "jobs", storage.budget)
    tools = JobTools(jobs, storage.files, models, folders, work, engine, base, in_thread, recorder.record_training_step)
    return FineTuning(jobs, models, base), JobRunner(tools)


def served_base(settings: Settings, loaded: LoadedModel) -> ServedBase:
    """What jobs may ask of the model."""
    fitting, refusal = _fitting_tokens(settings, loaded)
    max_length = max(2, min(loaded.max_model_len, fitting))
    usual = USUAL_TOKENS_ON_CPU if loaded.device == "cpu" else USUAL_TOKENS_ON_GPU
    names = (name for block in loaded.model.block_linears() for linear in block for name in linear.names)
    return ServedBase(
        names=settings.api_config().served_model_names,
        weights=loaded.weights,
        hidden_size=loaded.model_config.hidden_size,
        linears=frozenset(name.rpartition(".")[2] for name in names),
        max_rank=settings.max_lora_rank,
        max_length=max_length,
        usual_length=min(usual, max_length),
        refusal=refusal,
        packed_length=max(2, min(usual, int(_PACKED_SHARE * fitting))),
    )


def model_text(settings: Settings, parts: ModelParts) -> ModelText:
    return ModelText(
        tokenizer=parts.tokenizer,
        template=parts.template,
        end_id=min(parts.loaded.generation.eos_token_ids, default=None),
        vocab_size=parts.loaded.model_config.vocab_size,
        template_options=settings.default_chat_template_kwargs,
    )


def _fitting_tokens(settings: Settings, loaded: LoadedModel) -> tuple[int, str | None]:
    """Tokens of the largest micro-batch whose activations fit all KV blocks; or the reason why there is none."""
    from service.finetune.trainable_model import check_trainable, parameter_layout
    from service.finetune.trained_model import activation_arena

    try:
        model = check_trainable(loaded.model)
    except InvalidRequest as refusal:
        return loaded.max_model_len, refusal.message
    arena = activation_arena(model, parameter_layout(model, (), settings.max_lora_rank))
    return loaded.num_blocks * loaded.block_bytes * _PROBE_TOKENS // arena.num_bytes(_PROBE_TOKENS), None
