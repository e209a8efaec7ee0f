from __future__ import annotations

from typing import Any

import pytest

from service.api.serving_state import Phase, ServedModel, ServingState
from service.errors import Unavailable


def test_before_the_model_is_there() -> None:
    state = ServingState()
    assert state.phase is Phase.LOADING
    assert state.model is None
    assert state.ailment() is not None


@pytest.mark.parametrize("change", ["set_draining", "set_failed"])
def test_refuses_in_every_other_phase(change: str) -> None:
    state = ServingState()
    with pytest.raises(Unavailable, match="loading"):
        state.check_ready()
    getattr(state, change)()
    with pytest.raises(Unavailable):
        state.check_ready()
    assert state.ailment() is not None


@pytest.mark.parametrize(("change", "reason"), [("set_draining", "shutting down"), ("set_failed", "not be loaded")])
def test_without_a_model_it_says_why(change: str, reason: str) -> None:
    state = ServingState()
    getattr(state, change)()
    for check in (state.check_ready, state.check_loaded):
        with pytest.raises(Unavailable, match=reason):
            check()


def test_the_fingerprint_follows_the_build() -> None:
    def fingerprint(**build: str) -> str:
        model: Any = None
        return ServedModel(model, model, None, "r", 0, 1, 1, frozenset(), build=build).system_fingerprint

    assert fingerprint(dtype="float32", device="cpu") == fingerprint(device="cpu", dtype="float32")
    assert fingerprint(dtype="float32") != fingerprint(dtype="bfloat16")
    assert fingerprint().startswith("fp_")
