from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from service.composition.model_parts import ModelParts, load_model_parts
from service.core.clock import MonotonicClock
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.settings.settings import Settings

SMALL = {"device": "cpu", "dtype": "float32", "kv_cache_memory": 2**20, "max_num_seqs": 4, "max_num_batched_tokens": 64}


def new_recorder() -> Recorder:
    return Recorder(Instruments(CollectorRegistry()))


@pytest.fixture(scope="package")
def parts() -> ModelParts:
    """The quickstart model's, loaded once."""
    return load_model_parts(Settings(**SMALL), new_recorder(), MonotonicClock())
