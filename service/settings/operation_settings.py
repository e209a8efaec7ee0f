"""Settings of how the service is watched, logged and stopped."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, FiniteFloat


class OperationSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    shutdown_delay: FiniteFloat = Field(
        0.0,
        ge=0,
        description="seconds after SIGTERM in which /ready is 503 and new requests are still taken, so that a balancer"
        " can hear of it; shutdown-timeout begins behind them",
    )
    shutdown_timeout: FiniteFloat = Field(30.0, ge=0, description="seconds that running requests have after SIGTERM")
    metrics_compat: Literal["vllm", "none"] = Field("vllm", description="also export the vllm:* metric names")
    stream_interval_ms: FiniteFloat | None = Field(
        None,
        ge=0,
        description="least time between a stream's events; if left out, every token is sent at once while the event"
        " loop is less than half busy, and tokens go together beyond",
    )
    watchdog_timeout: FiniteFloat | None = Field(
        None,
        ge=2,
        description="seconds of an iteration after which the process ends itself (60 on a GPU, 600 on a CPU)",
    )
    access_log: bool = Field(False, description="log a line per request, without what was said in it")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto",
        description="of the log's lines; auto: text, but for those of requests, which are JSON unless on a terminal",
    )
    kv_events_endpoint: str | None = Field(
        None,
        description="ZMQ address of the prefix cache's events: with * to listen, else a router's; extra kv-events",
    )
    kv_events_replay_endpoint: str | None = Field(None, description="ZMQ address to ask for missed ones at, if any")
    kv_events_topic: str | None = Field(None, description="what their messages begin with, for subscribers")
    otlp_endpoint: str | None = Field(
        None, description="URL of an OpenTelemetry collector that gets a trace of each request; needs the extra otel"
    )
    log_load_every: FiniteFloat = Field(
        10.0, ge=0, description="seconds between lines that tell the load, while there is any; 0: none"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level logged")

    def hangs_after_s(self, *, is_gpu: bool) -> float:
        """Seconds after which an iteration counts as hanging. On a CPU one of a large model may take minutes."""
        return self.watchdog_timeout or (60.0 if is_gpu else 600.0)
