from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from service.composition.model_parts import ModelParts, load_model_parts
from service.composition.scheduler_defaults import BUDGET_ON_CPU
from service.core.clock import MonotonicClock
from service.errors import ConfigError
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.prediction.workload import Workload
from service.settings.settings import Settings
from tests.composition.conftest import SMALL, new_recorder


def test_the_quickstart_models_parts_fit_together(parts: ModelParts):
    assert parts.template is not None
    assert parts.tokenizer.num_tokens == parts.loaded.model_config.vocab_size
    assert parts.scheduler.max_num_batched_tokens == 64
    assert parts.loaded.dtype == "float32"


def test_the_budget_is_the_devices_if_none_is_set():
    settings = Settings(**{**SMALL, "max_num_batched_tokens": None})
    parts = load_model_parts(settings, new_recorder(), MonotonicClock())
    assert parts.scheduler.max_num_batched_tokens == BUDGET_ON_CPU


@pytest.mark.parametrize(("changed", "calibrates"), [({}, False), ({"preemption": "adaptive"}, True)])
def test_predictors_are_timed_at_the_start_if_a_policy_asks_them_from_the_first_request(
    changed: dict[str, str], calibrates: bool
):
    registry = CollectorRegistry()
    settings = Settings(**SMALL, **changed)
    parts = load_model_parts(settings, Recorder(Instruments(registry)), MonotonicClock())
    phases = {"imports", "model"} | ({"calibration"} if calibrates else set())
    exported = generate_latest(registry).decode()
    assert {phase for phase in ("imports", "model", "calibration") if f'phase="{phase}"' in exported} == phases
    assert (parts.cost.iteration_time.predicted_s(Workload.of_chunk(0, 6)) is not None) == calibrates


def test_a_folder_without_a_model_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model_parts(Settings(model=str(tmp_path), **SMALL), new_recorder(), MonotonicClock())


def test_a_template_variable_that_the_model_does_not_ask_for_is_refused():
    settings = Settings(default_chat_template_kwargs={"enable_thinkin": False}, **SMALL)
    with pytest.raises(ConfigError, match="does not use 'enable_thinkin'"):
        load_model_parts(settings, new_recorder(), MonotonicClock())


def test_what_is_chosen_is_told_kept_in_the_named_file_and_refused_where_it_does_not_fit(tmp_path, caplog):
    file = tmp_path / "choices.json"
    with caplog.at_level(logging.INFO):
        first = load_model_parts(Settings(choices=file, **SMALL), new_recorder(), MonotonicClock()).loaded.choices
    assert f"choices: {first}" in [record.getMessage() for record in caplog.records]
    written = file.read_bytes()
    again = load_model_parts(Settings(choices=file, **SMALL), new_recorder(), MonotonicClock()).loaded.choices
    assert again == first
    with pytest.raises(
        ConfigError, match=r"choices: .*choices\.json was made for another setup: max_num_seqs is \d+ in .* 3 here"
    ):
        load_model_parts(Settings(choices=file, **{**SMALL, "max_num_seqs": 3}), new_recorder(), MonotonicClock())
    assert file.read_bytes() == written
