"""From a loaded model and its running engine to what the HTTP surface serves."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from service.api.serving_state import GenerationDefaults, ServedModel
from service.composition.model_parts import ModelParts
from service.core.adapter import Adapters
from service.core.clock import Clock
from service.core.version import distribution_version
from service.engine.async_engine import AsyncEngine
from service.finetune.fine_tuning import FineTuning
from service.kvcache.block_manager import BlockManager
from service.metrics.recorder import Recorder
from service.process.daemon_thread import in_daemon_thread
from service.settings.settings import Settings
from service.structured.grammar_compiler import GrammarCompiler
from service.structured.vocabulary import token_table

if TYPE_CHECKING:
    from service.lora.adapter_registry import AdapterRegistry


def make_served_model(
    settings: Settings,
    parts: ModelParts,
    engine: AsyncEngine,
    blocks: BlockManager,
    adapters: Adapters | None,
    fine_tuning: FineTuning | None,
    clock: Clock,
) -> ServedModel:
    loaded, eos_token_ids = parts.loaded, parts.loaded.generation.eos_token_ids
    vocab_size = loaded.model_config.vocab_size
    return ServedModel(
        engine=engine,
        tokenizer=parts.tokenizer,
        chat_template=parts.template,
        root=settings.public_model_name(),
        created=int(time.time()),
        max_model_len=min(loaded.max_model_len, blocks.longest_sequence or loaded.max_model_len),
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        defaults=_defaults(settings, parts),
        build={
            "model": settings.public_model_name(),
            "revision": settings.revision or "none",
            "load_format": settings.load_format,
            "weights": loaded.weights,
            "architecture": loaded.model_config.architecture,
            "dtype": loaded.dtype,
            "quantization": "none" if loaded.quantization is None else loaded.quantization,
            "kv_cache_dtype": loaded.dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype,
            "device": loaded.device,
            "headrace": distribution_version(),
        },
        quantization=loaded.quantization,
        takes_deterministic=settings.deterministic or loaded.batches_deterministic,
        tokenizer_options=parts.tokenizer_options,
        grammars=GrammarCompiler(partial(token_table, parts.tokenizer, vocab_size, eos_token_ids)),
        adapters=adapters,
        fine_tuning=fine_tuning,
        embedder=parts.embedder,
        clock=clock,
    )


def make_adapters(
    settings: Settings, parts: ModelParts, engine: AsyncEngine, recorder: Recorder
) -> AdapterRegistry | None:
    """None if none are served."""
    from service.lora.adapter_registry import AdapterRegistry  # uses tensors: torch is loaded by now

    reader, config = parts.adapter_reader, settings.lora_config()
    if reader is None or config is None:
        return None
    return AdapterRegistry(
        reader,
        config,
        parts.adapters,
        settings.api_config().served_model_names,
        in_thread=partial(in_daemon_thread, name="adapters"),
        on_read=recorder.record_adapter_read,
        on_dropped=engine.forget_adapter,
    )


def _defaults(settings: Settings, parts: ModelParts) -> GenerationDefaults:
    given = parts.loaded.generation
    return GenerationDefaults(
        temperature=1.0 if given.temperature is None else given.temperature,
        top_p=1.0 if given.top_p is None else given.top_p,
        top_k=0 if given.top_k is None else given.top_k,
        min_p=0.0 if given.min_p is None else given.min_p,
        repetition_penalty=1.0 if given.repetition_penalty is None else given.repetition_penalty,
        heeds_priority=settings.scheduling_policy == "priority",
        lower_priority_first=settings.priority_order == "lower-first",
    )
