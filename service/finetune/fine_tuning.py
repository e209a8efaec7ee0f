"""Fine-tuning as the HTTP layer uses it."""

from __future__ import annotations

from dataclasses import dataclass

from service.finetune.jobs import FineTuningJobs
from service.finetune.models import FineTunedModels
from service.finetune.served_base import ServedBase


@dataclass(frozen=True, slots=True)
class FineTuning:
    jobs: FineTuningJobs
    models: FineTunedModels
    base: ServedBase
