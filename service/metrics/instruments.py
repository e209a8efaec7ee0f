"""Every metric that is recorded as things happen, in one table: name (with its unit), help text, labels, buckets.

What is read at scrape time is elsewhere: gauges of live state (`live_gauges.py`), the host's time by part
(`host_seconds.py`). Buckets keep vLLM's bounds, because `vllm_names.py` shows the same observations under vLLM's names;
smaller ones are added.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics

from service.metrics.plain_histogram import PlainHistogram, PlainHistograms

_MILLISECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05)
_ITERATION_SECONDS = (*_MILLISECONDS, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKEN_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
_FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_REQUEST_SECONDS = (
    0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_HTTP_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_REQUEST_TOKENS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
)  # fmt: skip
_ITERATION_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_ERROR_RATIOS = (0.01, 0.02, 0.04, 0.1, 0.3, 1.0)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (0, 1, 2, 4, 8, 16)
_TURNAROUND_RATIOS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)


class Instruments:
    """One set of metrics, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A process-wide switch of the library: the `_created` series double every counter's cost.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of the library

        self._registry = registry
        self._make_those_of_iterations()
        self._make_those_of_trainings()
        self._make_those_of_predictions()
        self._make_those_of_requests()
        self._make_those_of_the_process()

    def _make_those_of_iterations(self) -> None:
        plain, counter = self._plain, self._counter
        self.iteration_batch_size = plain(
            "headrace_iteration_batch_size", "Sequences scheduled in an iteration.", _SEQUENCES
        )
        self.iteration_tokens = plain(
            "headrace_iteration_tokens", "Tokens computed in an iteration.", _ITERATION_TOKENS
        )
        self.iterations = counter(
            "headrace_iterations_total", "Iterations, by launch: as one CUDA graph, or kernel by kernel.", ("launch",)
        )
        self.iteration_seconds = PlainHistograms(
            "headrace_iteration_seconds",
            "Seconds of an iteration, by host phase. device: time on the device, as measured by the host.",
            _ITERATION_SECONDS,
            "phase",
            ("schedule", "launch", "wait", "apply", "device"),
        )
        self._registry.register(self.iteration_seconds)
        self.tokens = counter(
            "headrace_tokens_total",
            "Tokens by kind: prompt tokens, cached prompt tokens, tokens recomputed after a preemption, generated.",
            ("kind",),
        )
        self.preemptions = counter("headrace_preemptions_total", "Preemptions, by how the request resumes.", ("kind",))
        self.swapped_blocks = counter("headrace_swapped_blocks_total", "KV blocks swapped to or from the host.")
        self.swapped_bytes = counter(
            "headrace_swapped_bytes_total",
            "Bytes swapped to or from the host, in the form in which they are kept there.",
        )
        self.prefix_queried_tokens = counter(
            "headrace_prefix_cache_queried_tokens_total",
            "Prompt tokens of starting requests that were looked up in the prefix cache.",
        )
        self.prefix_hit_tokens = counter(
            "headrace_prefix_cache_hit_tokens_total",
            "Prompt tokens of starting requests that were found in the prefix cache.",
        )
        self.drafts = counter(
            "headrace_drafts_total", "Drafts computed: one per sequence and iteration (speculative decoding)."
        )
        self.draft_tokens = counter("headrace_draft_tokens_total", "Draft tokens computed.")
        self.accepted_draft_tokens = counter("headrace_accepted_draft_tokens_total", "Draft tokens accepted.")
        self.lora_loads = counter("headrace_lora_loads_total", "LoRA adapters copied to the device.")
        self.lora_evictions = counter(
            "headrace_lora_evictions_total",
            "Idle LoRA adapters removed from the device, because slots or KV blocks were short.",
        )

    def _make_those_of_trainings(self) -> None:
        counter = self._counter
        self.training_steps = counter(
            "headrace_training_layer_steps_total", "Layer steps of fine-tuning jobs: one layer, forward or backward."
        )
        self.training_seconds = counter("headrace_training_seconds_total", "Device seconds of these layer steps.")
        self.arena_returns = counter(
            "headrace_training_arena_returns_total",
            "How often requests took back the KV blocks that a fine-tuning job computed in.",
        )
        self.micro_batches_lost = counter(
            "headrace_training_micro_batches_lost_total",
            "Micro-batches in progress at that moment, which are computed again.",
        )
        self.deferrals = counter(
            "headrace_deferrals_total",
            "Requests that waited for a fine-tuning job, by cause: the deferral bound, or a piece in progress.",
            ("cause",),
        )
        self.deferred_seconds = counter(
            "headrace_deferred_seconds_total", "Seconds that these requests waited.", ("cause",)
        )

    def _make_those_of_predictions(self) -> None:
        histogram, counter = self._histogram, self._counter
        self.prediction_error = histogram(
            "headrace_prediction_error_ratio",
            "|predicted - actual| / actual, by predictor; sum / count is the mean absolute percentage error. "
            "recompute: iterations that recompute a preempted request, compared with the prediction at its preemption.",
            _ERROR_RATIOS,
            ("predictor",),
        )
        self.predicted_seconds = counter(
            "headrace_predicted_seconds_total",
            "Predicted seconds of everything that was then measured.",
            ("predictor",),
        )
        self.actual_seconds = counter(
            "headrace_predicted_actual_seconds_total",
            "Actual seconds of everything that was predicted.",
            ("predictor",),
        )

    def _make_those_of_requests(self) -> None:
        plain, counter = self._plain, self._counter
        self.requests = counter("headrace_requests_total", "Requests ended, by reason.", ("reason",))
        self.model_requests = counter(
            "headrace_model_requests_total",
            "Requests ended, by model and adapter. An empty adapter is the base model.",
            ("model", "adapter"),
        )
        self.model_tokens = counter(
            "headrace_model_tokens_total",
            "Tokens of these requests: prompt tokens (cached or not), and generated tokens.",
            ("model", "adapter", "kind"),
        )
        self.normalized_latency = plain(
            "headrace_normalized_latency_seconds", "End-to-end seconds per output token.", _TOKEN_SECONDS
        )
        self.time_to_first_token = plain(
            "headrace_time_to_first_token_seconds", "From arrival to first token.", _FIRST_TOKEN_SECONDS
        )
        self.time_per_output_token = plain(
            "headrace_time_per_output_token_seconds",
            "Mean seconds between a request's tokens after the first.",
            _TOKEN_SECONDS,
        )
        self.inter_token_latency = plain(
            "headrace_inter_token_latency_seconds",
            "Seconds between consecutive tokens of a request, each interval.",
            _TOKEN_SECONDS,
        )
        self.e2e = plain("headrace_request_seconds", "From arrival to end.", _REQUEST_SECONDS)
        self.queue = plain("headrace_queue_seconds", "From arrival to first iteration.", _REQUEST_SECONDS)
        self.prefill = plain("headrace_prefill_seconds", "From first iteration to first token.", _REQUEST_SECONDS)
        self.decode = plain("headrace_decode_seconds", "From first token to end.", _REQUEST_SECONDS)
        self.prompt_tokens = plain("headrace_prompt_tokens", "Prompt tokens of a request.", _REQUEST_TOKENS)
        self.output_tokens = plain("headrace_output_tokens", "Output tokens of a request.", _REQUEST_TOKENS)
        self.weighted_turnaround = plain(
            "headrace_weighted_turnaround_ratio",
            "(Arrival to end) / (first iteration to end), from AdaptiveLLM; 1 without a wait.",
            _TURNAROUND_RATIOS,
        )
        # in no registry, so exported under vLLM's names alone (vllm_names.py): every series costs a Prometheus memory
        self.inference = PlainHistogram("inference_seconds", "From first iteration to end.", _REQUEST_SECONDS)
        self.longest_output_tokens = PlainHistogram(
            "longest_output_tokens", "Output tokens of a request's longest choice.", _REQUEST_TOKENS
        )
        self.max_tokens = PlainHistogram("max_tokens", "max_tokens of a request.", _REQUEST_TOKENS)
        self.choices = PlainHistogram("choices", "Choices (n) of a request.", _CHOICES)
        self.request_preemptions = PlainHistogram(
            "request_preemptions", "How often a request was preempted.", _PREEMPTIONS
        )

    def _make_those_of_the_process(self) -> None:
        histogram, counter, registry = self._histogram, self._counter, self._registry
        self.http_requests = counter("headrace_http_requests_total", "HTTP requests.", ("route", "method", "status"))
        self.http_seconds = histogram(
            "headrace_http_request_seconds", "From HTTP request to end of answer.", _HTTP_SECONDS, ("route",)
        )
        self.rejections = counter("headrace_rejections_total", "Requests rejected, by error code.", ("reason",))
        self.aborts = counter("headrace_aborts_total", "Calls aborted by the HTTP side, by reason.", ("reason",))
        self.event_loop_lag = self._plain(
            "headrace_event_loop_lag_seconds", "Seconds by which the event loop is late.", _ITERATION_SECONDS
        )
        self.policies = Info("headrace_policies", "The chosen policies.", registry=registry)
        self.finetuning_steps = Counter(
            "headrace_finetuning_steps", "Optimizer steps of fine-tuning jobs.", registry=registry
        )
        self.finetuning_tokens = Counter("headrace_finetuning_trained_tokens", "Tokens trained on.", registry=registry)
        self.finetuning_loss = Gauge(
            "headrace_finetuning_loss", "Mean loss over the tokens of the last optimizer step.", registry=registry
        )
        self.finetuning_jobs = Gauge(
            "headrace_finetuning_jobs", "Fine-tuning jobs, by status.", ("status",), registry=registry
        )
        self.lora_reads = Counter("headrace_lora_reads", "Adapters read from their folders.", registry=registry)
        self.lora_read_seconds = Counter(
            "headrace_lora_read_seconds", "Seconds spent reading adapters from their folders.", registry=registry
        )
        self.startup_seconds = Gauge(
            "headrace_startup_seconds", "Seconds of the startup, by phase.", ("phase",), registry=registry
        )

    def _histogram(
        self, name: str, meaning: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(name, meaning, labels, registry=self._registry, buckets=buckets)

    def _plain(self, name: str, meaning: str, buckets: tuple[float, ...]) -> PlainHistogram:
        """For observations of a single thread."""
        histogram = PlainHistogram(name, meaning, buckets)
        self._registry.register(histogram)
        return histogram

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, meaning, labels, registry=self._registry)
