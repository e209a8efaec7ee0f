from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from service.core.events import Outcome
from service.core.request import FinishReason
from service.core.stats import Deferral, IterationStats, Prediction, RequestStats, TrainingStats
from service.core.training import StepReport
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import MOST_ADAPTERS, OTHER_ADAPTERS
from service.metrics.recorder import Recorder
from tests.api.test_call_summary import stats

ITERATION = IterationStats(
    batch_size=3,
    prompt_tokens=5,
    recomputed_tokens=2,
    generated_tokens=3,
    num_dropped=1,
    num_swapped=2,
    prefix_queried_tokens=40,
    prefix_hit_tokens=32,
    swapped_blocks=6,
    schedule_s=0.001,
    launch_s=0.002,
    wait_s=0.008,
    device_s=0.009,
    apply_s=0.002,
    token_gaps=((0.02, 2), (0.5, 1)),
)
REQUEST = RequestStats(
    num_prompt_tokens=10,
    num_cached_tokens=4,
    num_output_tokens=5,
    n=1,
    max_tokens=20,
    arrival_s=100.0,
    first_scheduled_s=101.0,
    first_token_s=103.0,
    finished_s=111.0,
    num_preemptions=0,
    num_tokens_of_longest=5,
)


class Recording:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.recorder = Recorder(Instruments(self.registry))

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def recording() -> Recording:
    return Recording()


def test_an_iteration(recording: Recording) -> None:
    recording.recorder.record_iteration(ITERATION)
    assert recording("headrace_iteration_batch_size_sum") == 3
    assert recording("headrace_iteration_tokens_sum") == 10
    kinds = {kind: recording("headrace_tokens_total", kind=kind) for kind in ("prompt", "recomputed", "generated")}
    assert kinds == {"prompt": 5, "recomputed": 2, "generated": 3}
    names = ("schedule", "launch", "wait", "apply", "device")
    phases = [recording("headrace_iteration_seconds_sum", phase=name) for name in names]
    assert phases == [0.001, 0.002, 0.008, 0.002, 0.009]
    assert recording("headrace_inter_token_latency_seconds_sum") == pytest.approx(0.54)
    assert recording("headrace_inter_token_latency_seconds_bucket", le="0.02") is None
    assert recording("headrace_inter_token_latency_seconds_bucket", le="0.025") == 2
    assert recording("headrace_inter_token_latency_seconds_count") == 3
    assert recording("headrace_preemptions_total", kind="recompute") == 1
    recording.recorder.record_iteration(ITERATION._replace(is_replayed=True))
    recording.recorder.record_iteration(ITERATION._replace(is_replayed=True))
    launches = {launch: recording("headrace_iterations_total", launch=launch) for launch in ("graph", "kernels")}
    assert launches == {"graph": 2, "kernels": 1}


def test_errors_of_predictions(recording: Recording) -> None:
    predictions = (Prediction("recompute", 0.9, 1.0), Prediction("recompute", 2.6, 2.0), Prediction("swap", 1.0, 1.0))
    recording.recorder.record_iteration(ITERATION._replace(predictions=predictions))
    name = "headrace_prediction_error_ratio"
    assert recording(f"{name}_sum", predictor="recompute") == pytest.approx(0.1 + 0.3)
    assert recording(f"{name}_count", predictor="recompute") == 2
    assert recording(f"{name}_sum", predictor="swap") == 0
    assert recording("headrace_predicted_seconds_total", predictor="recompute") == pytest.approx(3.5)
    assert recording("headrace_predicted_actual_seconds_total", predictor="recompute") == pytest.approx(3.0)


def test_layer_steps_and_the_error_of_their_estimate(recording: Recording) -> None:
    recording.recorder.record_training(TrainingStats(3, 0.5, None))
    recording.recorder.record_training(TrainingStats(4, 1.0, Prediction("training", 1.25, 1.0)))
    assert recording("headrace_training_layer_steps_total") == 7
    assert recording("headrace_training_seconds_total") == 1.5
    assert recording("headrace_prediction_error_ratio_sum", predictor="training") == pytest.approx(0.25)
    assert recording("headrace_prediction_error_ratio_count", predictor="training") == 1


def test_what_requests_take_back_of_a_training(recording: Recording) -> None:
    recording.recorder.record_iteration(ITERATION._replace(num_arena_returns=2, num_micro_batches_lost=1))
    assert recording("headrace_training_arena_returns_total") == 2
    assert recording("headrace_training_micro_batches_lost_total") == 1


def test_deferrals_by_their_cause(recording: Recording) -> None:
    deferrals = (Deferral("bound", 0.5), Deferral("piece", 0.01), Deferral("bound", 0.25))
    recording.recorder.record_iteration(ITERATION._replace(deferrals=deferrals))
    counts = {cause: recording("headrace_deferrals_total", cause=cause) for cause in ("bound", "piece")}
    assert counts == {"bound": 2, "piece": 1}
    assert recording("headrace_deferred_seconds_total", cause="bound") == 0.75
    assert recording("headrace_deferred_seconds_total", cause="piece") == 0.01


def test_a_finished_request(recording: Recording) -> None:
    recording.recorder.record_request(REQUEST, Outcome.FINISHED, (FinishReason.STOP,))
    sums = {
        "normalized_latency_seconds": 11.0 / 5,
        "time_to_first_token_seconds": 3.0,
        "time_per_output_token_seconds": 2.0,
        "request_seconds": 11.0,
        "queue_seconds": 1.0,
        "prefill_seconds": 2.0,
        "decode_seconds": 8.0,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "weighted_turnaround_ratio": 1.1,
    }
    assert {name: recording(f"headrace_{name}_sum") for name in sums} == sums
    assert all(recording(f"headrace_{name}_count") == 1 for name in sums)
    assert recording("headrace_requests_total", reason="stop") == 1
    assert recording("headrace_tokens_total", kind="cached") == 4


@pytest.mark.parametrize(
    ("outcome", "reasons", "counted"),
    [
        (Outcome.FINISHED, (FinishReason.STOP, FinishReason.LENGTH), "length"),
        (Outcome.FINISHED, (FinishReason.STOP, FinishReason.STOP), "stop"),
        (Outcome.ABORTED, (FinishReason.STOP,), "abort"),
        (Outcome.FAILED, (), "error"),
    ],
)
def test_reasons(recording: Recording, outcome: Outcome, reasons: tuple[FinishReason, ...], counted: str) -> None:
    recording.recorder.record_request(REQUEST, outcome, reasons)
    counts = {
        reason: recording("headrace_requests_total", reason=reason) for reason in ("stop", "length", "abort", "error")
    }
    assert counts == {"stop": 0, "length": 0, "abort": 0, "error": 0} | {counted: 1}
    finished = outcome is Outcome.FINISHED
    assert recording("headrace_request_seconds_count") == finished


def test_a_request_that_never_ran(recording: Recording) -> None:
    never = replace(REQUEST, first_scheduled_s=None, first_token_s=None, num_output_tokens=0)
    for outcome in Outcome:
        recording.recorder.record_request(never, outcome, ())
    assert recording("headrace_normalized_latency_seconds_count") == 0
    assert recording("headrace_weighted_turnaround_ratio_count") == 0
    assert recording("headrace_time_to_first_token_seconds_count") == 0


def test_one_token_has_no_time_per_output_token(recording: Recording) -> None:
    recording.recorder.record_request(replace(REQUEST, num_output_tokens=1), Outcome.FINISHED, ())
    recording.recorder.record_request(replace(REQUEST, num_output_tokens=4, n=4), Outcome.FINISHED, ())
    assert recording("headrace_time_per_output_token_seconds_count") == 0


def test_http_and_start_up(recording: Recording) -> None:
    recording.recorder.record_http("/v1/x", "POST", 200, 0.5)
    recording.recorder.record_rejection("overloaded")
    recording.recorder.record_abort("client_disconnected")
    recording.recorder.record_startup("weights", 2.5)
    assert recording("headrace_http_requests_total", route="/v1/x", method="POST", status="200") == 1
    assert recording("headrace_http_request_seconds_sum", route="/v1/x") == 0.5
    assert recording("headrace_rejections_total", reason="overloaded") == 1
    assert recording("headrace_aborts_total", reason="client_disconnected") == 1
    assert recording("headrace_startup_seconds", phase="weights") == 2.5


def test_preemptions_by_kind_and_the_prefix_cache_are_counted():
    registry = CollectorRegistry()
    recorder = Recorder(Instruments(registry))
    recorder.record_host_block_bytes(1000)
    recorder.record_iteration(ITERATION)
    recorder.record_iteration(ITERATION)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"headrace_{name}_total", labels)

    assert value("preemptions", kind="recompute") == 2
    assert value("preemptions", kind="swap") == 4
    assert value("swapped_blocks") == 12
    assert value("swapped_bytes") == 12_000
    assert value("prefix_cache_queried_tokens") == 80
    assert value("prefix_cache_hit_tokens") == 64


def test_the_policies_are_labels(recording: Recording) -> None:
    recording.recorder.record_policies({"scheduling": "fair", "preemption": "adaptive"})
    assert recording("headrace_policies_info", scheduling="fair", preemption="adaptive") == 1


def test_drafts_are_counted(recording: Recording) -> None:
    recording.recorder.record_iteration(ITERATION)
    recording.recorder.record_iteration(ITERATION._replace(drafts=((4, 0), (4, 3), (2, 1))))
    assert recording("headrace_drafts_total") == 3
    assert recording("headrace_draft_tokens_total") == 10
    assert recording("headrace_accepted_draft_tokens_total") == 4


def test_adapters_that_come_and_go(recording: Recording) -> None:
    recording.recorder.record_iteration(ITERATION)
    assert (recording("headrace_lora_loads_total"), recording("headrace_lora_evictions_total")) == (0, 0)
    recording.recorder.record_iteration(ITERATION._replace(num_adapter_loads=3, num_adapter_evictions=1))
    assert (recording("headrace_lora_loads_total"), recording("headrace_lora_evictions_total")) == (3, 1)


def test_steps_of_fine_tuning_and_jobs_by_status(recording: Recording) -> None:
    recording.recorder.record_training_step(StepReport(1, 0.5, 0.9, 30, 0.001, 1.0))
    recording.recorder.record_training_step(StepReport(2, 0.25, 0.9, 12, 0.001, 1.0))
    assert recording("headrace_finetuning_steps_total") == 2
    assert recording("headrace_finetuning_trained_tokens_total") == 42
    assert recording("headrace_finetuning_loss") == 0.25
    for counts in ({"queued": 2, "running": 1}, {"queued": 0, "running": 1}):
        recording.recorder.record_jobs(counts)
        assert recording("headrace_finetuning_jobs", status="queued") == counts["queued"]


def test_counts_by_model_and_adapter_and_only_so_many_adapters_by_name() -> None:
    registry = CollectorRegistry()
    recorder = Recorder(Instruments(registry), "base")

    def value(name: str, adapter: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model": "base", "adapter": adapter, **labels})

    assert value("headrace_model_requests_total", "") == 0, "dashboards see it from the start"
    for i in range(MOST_ADAPTERS + 8):
        recorder.record_request(stats(adapter=f"a{i}"), Outcome.FINISHED, ())
    recorder.record_request(stats(adapter="a0"), Outcome.ABORTED, ())
    one = stats()
    assert value("headrace_model_requests_total", "a0") == 2
    assert value("headrace_model_tokens_total", "a0", kind="prompt") == 2 * one.num_prompt_tokens
    assert value("headrace_model_requests_total", f"a{MOST_ADAPTERS - 1}") == 1
    assert value("headrace_model_requests_total", f"a{MOST_ADAPTERS}") is None
    assert value("headrace_model_requests_total", OTHER_ADAPTERS) == 8
    assert value("headrace_model_tokens_total", OTHER_ADAPTERS, kind="generated") == 8 * one.num_output_tokens
