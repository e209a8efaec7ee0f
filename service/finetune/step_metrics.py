"""An optimizer step's metrics under OpenAI's names: for events, checkpoints and the result file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from service.core.training import StepReport
from service.finetune.job import JobEvent
from service.finetune.jobs import job_event

MAX_STEP_EVENTS = 10_000
"""Limit per job. A longer job reports every second step, every third, and so on."""

_COLUMNS = {
    "step": "step",
    "train_loss": "train_loss",
    "train_mean_token_accuracy": "train_accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
}
"""Metric name -> column of the result file, as in OpenAI's."""


def step_metrics(report: StepReport) -> dict[str, float]:
    metrics: dict[str, float] = {
        "step": report.step,
        "train_loss": report.loss,
        "train_mean_token_accuracy": report.token_accuracy,
        "learning_rate": report.learning_rate,
        "gradient_norm": report.gradient_norm,
    }
    if report.valid_loss is not None and report.valid_accuracy is not None:
        metrics |= {"valid_loss": report.valid_loss, "valid_mean_token_accuracy": report.valid_accuracy}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def checkpoint_metrics(report: StepReport) -> dict[str, float]:
    """Validation uses the whole validation file at the end of each epoch, so its metrics are also the `full_` ones."""
    metrics = step_metrics(report)
    full = {f"full_{name}": value for name, value in metrics.items() if name.startswith("valid_")}
    return {name: metrics[name] for name in _COLUMNS if name in metrics} | full


def is_told(step: int, num_steps: int) -> bool:
    """Whether this step gets an event."""
    return step % -(-num_steps // MAX_STEP_EVENTS) == 0 or step == num_steps


def step_event(report: StepReport, num_steps: int) -> JobEvent:
    message = f"Step {report.step}/{num_steps}: training loss={report.loss:.4f}"
    if report.valid_loss is not None:
        message += f", validation loss={report.valid_loss:.4f}"
    return job_event(message, data=step_metrics(report))


def as_csv(rows: Iterable[Mapping[str, float]]) -> bytes:
    """One line per step; empty cells where nothing was measured."""
    lines = [",".join(_COLUMNS.values())]
    lines += [",".join(str(row.get(name, "")) for name in _COLUMNS) for row in rows]
    return "\n".join([*lines, ""]).encode()
