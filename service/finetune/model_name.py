"""Names of fine-tuned models, in OpenAI's form: ft:BASE:ORGANIZATION:SUFFIX:ID, for checkpoints + :ckpt-step-N."""

from __future__ import annotations

from service.finetune.job import Job

ORGANIZATION = "headrace"
PREFIX = "ft:"
_ID_DIGITS = 12


def model_name(base: str, job: Job) -> str:
    """base: name of the served model. The name is unique to the job."""
    digits = job.job_id.removeprefix("ftjob-")[:_ID_DIGITS]
    return f"{PREFIX}{base}:{ORGANIZATION}:{job.spec.suffix}:{digits}"


def checkpoint_name(base: str, job: Job, step: int) -> str:
    return f"{model_name(base, job)}:ckpt-step-{step}"
