"""Anthropic's error object."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
]


class MessagesErrorDetail(BaseModel):
    type: ErrorType
    message: str


class MessagesErrorBody(BaseModel):
    """The body of a refusal, and the data of the event that ends a failed stream."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail
    request_id: str
