from __future__ import annotations

from typing import Any

import pytest

from service.api.serving_state import GenerationDefaults, Phase, ServedModel, ServingState
from service.errors import Unavailable


def test_before_the_model_is_there() -> None:
    state = ServingState()
    assert state.phase is Phase.LOADING
    assert state.model is None
    assert not state.is_healthy()


@pytest.mark.parametrize("change", ["set_draining", "set_failed"])
def test_refuses_in_every_other_phase(change: str) -> None:
    state = ServingState()
    with pytest.raises(Unavailable, match="loading"):
        state.check_ready()
    getattr(state, change)()
    with pytest.raises(Unavailable):
        state.check_ready()
    assert not state.is_healthy()


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        ({}, GenerationDefaults()),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": 2}, GenerationDefaults(0.6, 0.9, 20)),
        ({"temperature": None, "top_p": 0, "top_k": None}, GenerationDefaults()),
        ({"temperature": -1, "top_p": 1.5, "top_k": -1}, GenerationDefaults()),
        ({"temperature": "hot", "top_p": True, "top_k": 1.5}, GenerationDefaults()),
        ({"temperature": 0, "top_p": 1, "top_k": 0}, GenerationDefaults(0.0, 1.0, 0)),
    ],
)
def test_defaults_from_generation_config(config: dict[str, Any], defaults: GenerationDefaults) -> None:
    assert GenerationDefaults.from_generation_config(config) == defaults


def test_the_fingerprint_follows_the_build() -> None:
    def fingerprint(**build: str) -> str:
        model: Any = None
        return ServedModel(model, model, None, "r", 0, 1, 1, frozenset(), build=build).system_fingerprint

    assert fingerprint(dtype="float32", device="cpu") == fingerprint(device="cpu", dtype="float32")
    assert fingerprint(dtype="float32") != fingerprint(dtype="bfloat16")
    assert fingerprint().startswith("fp_")
