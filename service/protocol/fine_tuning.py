"""Wire shapes of /v1/fine_tuning/jobs, as OpenAI has them; Headrace's own fields are marked as such."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.protocol.generation import Members, Whole, WireRequest, bounds

Auto = Literal["auto"]


class SupervisedHyperparameters(WireRequest):
    """rank, alpha, target_modules, learning_rate (instead of a multiplier) and max_length are Headrace's own."""

    batch_size: Annotated[Whole | Auto | None, bounds(1, 256)] = None
    learning_rate_multiplier: Annotated[float | Auto | None, Field(json_schema_extra={"exclusiveMinimum": 0})] = None
    n_epochs: Annotated[Whole | Auto | None, bounds(1, 50)] = None
    rank: Annotated[Whole | None, bounds(1)] = None
    alpha: Annotated[float | None, Field(json_schema_extra={"exclusiveMinimum": 0})] = None
    target_modules: Members[str] | None = None
    learning_rate: Annotated[float | None, Field(json_schema_extra={"exclusiveMinimum": 0})] = None
    max_length: Annotated[Whole | None, bounds(2)] = None


class Supervised(WireRequest):
    hyperparameters: SupervisedHyperparameters | None = None


class Method(WireRequest):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None


class CreateJob(WireRequest):
    """hyperparameters: the older form of `method`. seed: random if left out."""

    model: str
    training_file: str
    validation_file: str | None = None
    hyperparameters: SupervisedHyperparameters | None = None
    method: Method | None = None
    suffix: str | None = None
    seed: Annotated[Whole | None, bounds(0, 2**63 - 1)] = None
    metadata: dict[str, str] | None = None
    integrations: list[Any] | None = None


class JobErrorShape(BaseModel):
    code: str
    message: str
    param: str | None


class UsedHyperparameters(BaseModel):
    """The values that were asked for, and once the files are read those in use. The last five are Headrace's own."""

    n_epochs: int | Auto
    batch_size: int | Auto
    learning_rate_multiplier: float | Auto
    rank: int | Auto
    alpha: float | Auto
    target_modules: list[str] | Auto
    learning_rate: float | Auto
    max_length: int | Auto


class UsedSupervised(BaseModel):
    hyperparameters: UsedHyperparameters


class UsedMethod(BaseModel):
    type: Literal["supervised"] = "supervised"
    supervised: UsedSupervised


class FineTuningJobObject(BaseModel):
    """Times are Unix seconds. trained_tokens: of all epochs; set when the job has succeeded."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: JobErrorShape | None
    fine_tuned_model: str | None
    finished_at: int | None
    estimated_finish: int | None
    hyperparameters: UsedHyperparameters
    method: UsedMethod
    integrations: list[Any] = []
    metadata: dict[str, str] | None
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
    suffix: str | None
    trained_tokens: int | None
    training_file: str
    validation_file: str | None


class JobEventObject(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, float] | None


class CheckpointMetrics(BaseModel):
    step: float
    train_loss: float | None = None
    train_mean_token_accuracy: float | None = None
    valid_loss: float | None = None
    valid_mean_token_accuracy: float | None = None
    full_valid_loss: float | None = None
    full_valid_mean_token_accuracy: float | None = None


class CheckpointObject(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: CheckpointMetrics
    step_number: int


class JobList(BaseModel):
    object: Literal["list"] = "list"
    data: list[FineTuningJobObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class JobEventList(BaseModel):
    object: Literal["list"] = "list"
    data: list[JobEventObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CheckpointList(BaseModel):
    object: Literal["list"] = "list"
    data: list[CheckpointObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: bool = True
