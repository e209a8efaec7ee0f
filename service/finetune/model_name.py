"""Names of models that jobs make, as OpenAI forms them: ft:BASE:ORGANIZATION:SUFFIX:ID, with :ckpt-step-N behind it."""

from __future__ import annotations

from service.finetune.job import Job

ORGANIZATION = "headrace"
PREFIX = "ft:"
_ID_DIGITS = 12


def model_name(base: str, job: Job) -> str:
    """base: the name of the model that is served. No other job has the same."""
    digits = job.job_id.removeprefix("ftjob-")[:_ID_DIGITS]
    return f"{PREFIX}{base}:{ORGANIZATION}:{job.spec.suffix}:{digits}"


def checkpoint_name(base: str, job: Job, step: int) -> str:
    return f"{model_name(base, job)}:ckpt-step-{step}"
