"""Translates the engine's and the HTTP surface's plain facts into metric observations."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Histogram

from service.core.events import Outcome
from service.core.host_times import HostTimes
from service.core.request import FinishReason
from service.core.stats import IterationStats, Prediction, RequestStats, TrainingStats
from service.core.training import StepReport
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import MOST_ADAPTERS, OTHER_ADAPTERS


class Recorder:
    """The StatsSink of the engine and of the HTTP surface, each of which calls from its own thread; never raises on
    facts.

    Label children are bound once: an observation then costs half as much as with `labels()`.
    model_name: the `model` label.
    """

    def __init__(self, instruments: Instruments, model_name: str = "") -> None:
        self._instruments = instruments
        self._model_name = model_name
        self._by_adapter: dict[str, tuple[Counter, Counter, Counter]] = {}
        self._of_adapter("")
        self.times = HostTimes()
        self.num_generated = 0
        self._schedule_s = instruments.iteration_seconds.labels("schedule")
        self._launch_s = instruments.iteration_seconds.labels("launch")
        self._wait_s = instruments.iteration_seconds.labels("wait")
        self._apply_s = instruments.iteration_seconds.labels("apply")
        self._device_s = instruments.iteration_seconds.labels("device")
        self._graphs = instruments.iterations.labels("graph")
        self._kernels = instruments.iterations.labels("kernels")
        self._host_block_bytes = 0
        self._prompt = instruments.tokens.labels("prompt")
        self._cached = instruments.tokens.labels("cached")
        self._recomputed = instruments.tokens.labels("recomputed")
        self._generated = instruments.tokens.labels("generated")
        self._dropped = instruments.preemptions.labels("recompute")
        self._swapped = instruments.preemptions.labels("swap")
        self._prediction_error: dict[str, Histogram] = {
            predictor: instruments.prediction_error.labels(predictor) for predictor in ("iteration", "swap")
        }
        self._deferrals = {
            cause: (instruments.deferrals.labels(cause), instruments.deferred_seconds.labels(cause))
            for cause in ("bound", "piece")
        }
        self._http: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._ended = {reason: instruments.requests.labels(reason) for reason in ("stop", "length", "abort", "error")}

    def record_adapter_read(self, seconds: float) -> None:
        """A LoRA adapter was read from its folder."""
        self._instruments.lora_reads.inc()
        self._instruments.lora_read_seconds.inc(seconds)

    def record_iteration(self, stats: IterationStats) -> None:
        instruments, times = self._instruments, self.times
        times.schedule += stats.schedule_s
        times.launch += stats.launch_s
        times.wait += stats.wait_s
        times.apply += stats.apply_s
        times.device += stats.device_s
        self.num_generated += stats.generated_tokens
        instruments.iteration_batch_size.observe(stats.batch_size)
        instruments.iteration_tokens.observe(stats.prompt_tokens + stats.recomputed_tokens + stats.generated_tokens)
        (self._graphs if stats.is_replayed else self._kernels).inc()
        self._schedule_s.observe(stats.schedule_s)
        self._launch_s.observe(stats.launch_s)
        self._wait_s.observe(stats.wait_s)
        self._apply_s.observe(stats.apply_s)
        self._device_s.observe(stats.device_s)
        self._generated.inc(stats.generated_tokens)
        if stats.prompt_tokens or stats.recomputed_tokens or stats.prefix_queried_tokens:
            self._record_prompts(stats)
        if stats.num_dropped or stats.num_swapped or stats.swapped_blocks:
            self._record_preemptions(stats)
        if stats.num_adapter_loads or stats.num_adapter_evictions:
            instruments.lora_loads.inc(stats.num_adapter_loads)
            instruments.lora_evictions.inc(stats.num_adapter_evictions)
        if stats.drafts:
            self._record_drafts(stats.drafts)
        if stats.num_arena_returns:
            instruments.arena_returns.inc(stats.num_arena_returns)
            instruments.micro_batches_lost.inc(stats.num_micro_batches_lost)
        for cause, deferred_s in stats.deferrals:
            deferrals, deferred_seconds = self._deferrals[cause]
            deferrals.inc()
            deferred_seconds.inc(deferred_s)
        for seconds, count in stats.token_gaps:
            instruments.inter_token_latency.observe(seconds, count)
        for prediction in stats.predictions:
            self._record_prediction(prediction)

    def record_training(self, stats: TrainingStats) -> None:
        self._instruments.training_steps.inc(stats.num_layer_steps)
        self._instruments.training_seconds.inc(stats.seconds)
        if stats.prediction is not None:
            self._record_prediction(stats.prediction)

    def record_training_step(self, report: StepReport) -> None:
        self._instruments.finetuning_steps.inc()
        self._instruments.finetuning_tokens.inc(report.num_trained_tokens)
        self._instruments.finetuning_loss.set(report.loss)

    def record_jobs(self, counts: Mapping[str, int]) -> None:
        """The number of fine-tuning jobs, by status."""
        for status, count in counts.items():
            self._instruments.finetuning_jobs.labels(status).set(count)

    def record_commands(self, seconds: float) -> None:
        self.times.commands += seconds

    def record_request(self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> None:
        """Latencies are recorded for finished requests; an aborted one counts only as ended, with its tokens."""
        self._ended[_end_reason(outcome, finish_reasons)].inc()
        self._cached.inc(stats.num_cached_tokens)
        requests, prompt_tokens, generated_tokens = self._of_adapter(stats.adapter)
        requests.inc()
        prompt_tokens.inc(stats.num_prompt_tokens)
        generated_tokens.inc(stats.num_output_tokens)
        if outcome is not Outcome.FINISHED:
            return
        instruments = self._instruments
        instruments.prompt_tokens.observe(stats.num_prompt_tokens)
        instruments.output_tokens.observe(stats.num_output_tokens)
        instruments.longest_output_tokens.observe(stats.num_tokens_of_longest)
        instruments.max_tokens.observe(stats.max_tokens)
        instruments.choices.observe(stats.n)
        instruments.request_preemptions.observe(stats.num_preemptions)
        instruments.e2e.observe(stats.e2e_s)
        if stats.weighted_turnaround is not None:
            instruments.weighted_turnaround.observe(stats.weighted_turnaround)
        if stats.normalized_latency_s is not None:
            instruments.normalized_latency.observe(stats.normalized_latency_s)
        if stats.first_scheduled_s is not None:
            instruments.queue.observe(stats.first_scheduled_s - stats.arrival_s)
            instruments.inference.observe(stats.finished_s - stats.first_scheduled_s)
        if stats.first_token_s is not None:
            self._record_tokens_in_time(stats, stats.first_token_s)

    def _of_adapter(self, adapter: str) -> tuple[Counter, Counter, Counter]:
        """Counters of requests, prompt tokens and generated tokens. The first MOST_ADAPTERS adapters have series of
        their own."""
        bound = self._by_adapter.get(adapter)
        if bound is None and len(self._by_adapter) > MOST_ADAPTERS:
            adapter = OTHER_ADAPTERS
            bound = self._by_adapter.get(adapter)
        if bound is None:
            labels, of = (self._model_name, adapter), self._instruments
            prompt, generated = of.model_tokens.labels(*labels, "prompt"), of.model_tokens.labels(*labels, "generated")
            bound = self._by_adapter[adapter] = (of.model_requests.labels(*labels), prompt, generated)
        return bound

    def _record_prompts(self, stats: IterationStats) -> None:
        self._prompt.inc(stats.prompt_tokens)
        self._recomputed.inc(stats.recomputed_tokens)
        self._instruments.prefix_queried_tokens.inc(stats.prefix_queried_tokens)
        self._instruments.prefix_hit_tokens.inc(stats.prefix_hit_tokens)

    def _record_drafts(self, drafts: tuple[tuple[int, int], ...]) -> None:
        self._instruments.drafts.inc(len(drafts))
        self._instruments.draft_tokens.inc(sum(num_drafted for num_drafted, _ in drafts))
        self._instruments.accepted_draft_tokens.inc(sum(num_accepted for _, num_accepted in drafts))

    def _record_preemptions(self, stats: IterationStats) -> None:
        self._dropped.inc(stats.num_dropped)
        self._swapped.inc(stats.num_swapped)
        self._instruments.swapped_blocks.inc(stats.swapped_blocks)
        self._instruments.swapped_bytes.inc(stats.swapped_blocks * self._host_block_bytes)

    def _record_prediction(self, prediction: Prediction) -> None:
        predictor, predicted_s, actual_s = prediction
        error = self._prediction_error.get(predictor)
        if error is None:  # of trainings and recoveries: no series before the first
            error = self._prediction_error[predictor] = self._instruments.prediction_error.labels(predictor)
        error.observe(abs(predicted_s - actual_s) / max(actual_s, 1e-9))
        self._instruments.predicted_seconds.labels(predictor).inc(predicted_s)
        self._instruments.actual_seconds.labels(predictor).inc(actual_s)

    def _record_tokens_in_time(self, stats: RequestStats, first_token_s: float) -> None:
        instruments = self._instruments
        instruments.time_to_first_token.observe(first_token_s - stats.arrival_s)
        decode_s = stats.finished_s - first_token_s
        instruments.decode.observe(decode_s)
        if stats.first_scheduled_s is not None:
            instruments.prefill.observe(first_token_s - stats.first_scheduled_s)
        if (seconds := stats.time_per_output_token_s) is not None:
            instruments.time_per_output_token.observe(seconds)

    def record_http(self, route: str, method: str, status: int, seconds: float) -> None:
        """`route` is a template, never a path."""
        bound = self._http.get((route, method, status))
        if bound is None:
            instruments = self._instruments
            bound = instruments.http_requests.labels(route, method, str(status)), instruments.http_seconds.labels(route)
            self._http[route, method, status] = bound
        requests, durations = bound
        requests.inc()
        durations.observe(seconds)

    def record_rejection(self, reason: str) -> None:
        """`reason` is an error code or type of ours, never a client's text."""
        self._instruments.rejections.labels(reason).inc()

    def record_abort(self, reason: str) -> None:
        self._instruments.aborts.labels(reason).inc()

    def record_event_loop_lag(self, seconds: float) -> None:
        self._instruments.event_loop_lag.observe(seconds)

    def record_policies(self, policies: Mapping[str, str]) -> None:
        """policies: what is decided -> the name of the policy that decides it."""
        self._instruments.policies.info(dict(policies))

    def record_host_block_bytes(self, num_bytes: int) -> None:
        """The bytes of a swapped block on the host; to be called before the first iteration."""
        self._host_block_bytes = num_bytes

    def record_startup(self, phase: str, seconds: float) -> None:
        self._instruments.startup_seconds.labels(phase).set(seconds)


def _end_reason(outcome: Outcome, finish_reasons: tuple[FinishReason, ...]) -> str:
    if outcome is Outcome.FINISHED:
        return "length" if FinishReason.LENGTH in finish_reasons else "stop"
    return "abort" if outcome is Outcome.ABORTED else "error"
