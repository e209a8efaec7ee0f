"""GET /v1/models: model cards."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel


class ModelPermission(BaseModel):
    """What OpenAI's older clients expect in a card: everybody may sample, nobody may fine-tune."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = False
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class DefaultSampling(BaseModel):
    """Defaults of requests that give no value; top_k 0 is all tokens."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float


class ModelCard(BaseModel):
    """`root` is what the name stands for; `parent` is the base model of an adapter, null for a base model.
    `quantization` is the format of the weights, null if they are not quantized. `deterministic`: every request is
    deterministic; `deterministic_on_request`: requests that ask for it are. The fields from `type` on are those of
    Anthropic's list of models; prompt and answer share the context."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    parent: str | None = None
    max_model_len: int
    quantization: str | None = None
    deterministic: bool = False
    deterministic_on_request: bool = False
    permission: list[ModelPermission]
    default_sampling: DefaultSampling
    type: Literal["model"] = "model"
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class ModelList(BaseModel):
    """All models, on one page."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: Literal[False] = False
