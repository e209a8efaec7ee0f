"""Settings of monitoring, logging and shutdown."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, FiniteFloat


class OperationSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    shutdown_delay: FiniteFloat = Field(
        0.0,
        ge=0,
        description="seconds after SIGTERM during which /ready is 503 but new requests are accepted, so that a load"
        " balancer notices first; shutdown-timeout starts after it",
    )
    shutdown_timeout: FiniteFloat = Field(
        30.0, ge=0, description="seconds that running requests have to finish after SIGTERM"
    )
    metrics_compat: Literal["vllm", "none"] = Field("vllm", description="vllm: also export the vllm:* metric names")
    stream_interval_ms: FiniteFloat | None = Field(
        None,
        ge=0,
        description="minimum time between two events of a stream; if not set, every token is sent at once while the"
        " event loop is less than half busy, and tokens are sent together beyond",
    )
    watchdog_timeout: FiniteFloat | None = Field(
        None,
        ge=2,
        description="if one iteration takes longer (seconds), the process ends itself (60 on a GPU, 600 on a CPU)",
    )
    access_log: bool = Field(False, description="log one line per request, without its content")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto",
        description="format of log lines; auto: text, but request lines are JSON unless on a terminal",
    )
    kv_events_endpoint: str | None = Field(
        None,
        description="ZMQ address for prefix cache events: with * to listen, otherwise a router to connect to; needs"
        " the extra kv-events",
    )
    kv_events_replay_endpoint: str | None = Field(
        None, description="ZMQ address where subscribers can request missed events"
    )
    kv_events_topic: str | None = Field(None, description="topic at the start of each event message")
    otlp_endpoint: str | None = Field(
        None,
        description="base URL of an OpenTelemetry collector that gets a trace of each request; needs the extra otel",
    )
    log_load_every: FiniteFloat = Field(
        10.0, ge=0, description="seconds between log lines with the load, while there is any; 0: none"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe level that is logged"
    )

    def hangs_after_s(self, *, is_gpu: bool) -> float:
        """Seconds after which an iteration counts as hanging. On a CPU one of a large model may take minutes."""
        return self.watchdog_timeout or (60.0 if is_gpu else 600.0)
