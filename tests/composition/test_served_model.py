from __future__ import annotations

import asyncio

from service.composition.engine_assembly import make_engine
from service.composition.model_parts import ModelParts
from service.composition.served_model import make_adapters, make_served_model
from service.core.clock import MonotonicClock
from service.engine.async_engine import AsyncEngine
from service.settings.quickstart import QUICKSTART_MODEL
from service.settings.settings import Settings
from tests.composition.conftest import SMALL, new_recorder


async def serve(parts: ModelParts, **changed: object):
    settings, clock = Settings(**SMALL, **changed), MonotonicClock()
    engine, blocks = make_engine(settings, parts, new_recorder(), clock)
    asynchronous = AsyncEngine(engine, blocks, parts.scheduler, clock, lambda fault: None)
    adapters = make_adapters(settings, parts, asynchronous, new_recorder())
    return make_served_model(settings, parts, asynchronous, blocks, adapters, None, clock)


def test_its_limits_are_the_models_and_the_caches(parts: ModelParts):
    model = asyncio.run(serve(parts))
    assert model.vocab_size == parts.loaded.model_config.vocab_size
    assert model.max_model_len == min(parts.loaded.max_model_len, parts.loaded.num_blocks * 16)
    assert model.eos_token_ids == parts.loaded.generation.eos_token_ids


def test_it_says_what_the_answers_depend_on_and_no_path(parts: ModelParts):
    by_folder = asyncio.run(serve(parts, model=str(QUICKSTART_MODEL)))
    assert by_folder.root == QUICKSTART_MODEL.name
    assert by_folder.build["dtype"] == "float32"
    assert not any("/" in value for value in by_folder.build.values())
    other_revision = asyncio.run(serve(parts, model=str(QUICKSTART_MODEL), revision="v2"))
    rounded = asyncio.run(serve(parts, model=str(QUICKSTART_MODEL), kv_cache_dtype="fp8"))
    assert rounded.build["kv_cache_dtype"] == "fp8" and by_folder.build["kv_cache_dtype"] == "float32"
    fingerprints = {each.system_fingerprint for each in (by_folder, other_revision, rounded)}
    assert len(fingerprints) == 3


def test_requests_may_ask_for_determinism_where_it_is_batched_or_all_have_it(parts: ModelParts):
    """The model is in fp32, which is not batched."""
    assert not asyncio.run(serve(parts)).takes_deterministic
    assert asyncio.run(serve(parts, deterministic=True)).takes_deterministic


def test_priorities_are_heeded_under_their_policy_only(parts: ModelParts):
    assert not asyncio.run(serve(parts)).defaults.heeds_priority
    assert asyncio.run(serve(parts, scheduling_policy="priority")).defaults.heeds_priority
