from __future__ import annotations

from typing import get_args

from anthropic.types.shared import ErrorType as ClientsErrorType

from service.protocol.messages_error import ErrorType, MessagesErrorBody, MessagesErrorDetail


def test_is_anthropics_error_object() -> None:
    body = MessagesErrorBody(error=MessagesErrorDetail(type="not_found_error", message="m"), request_id="r")
    assert body.model_dump() == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "m"},
        "request_id": "r",
    }


def test_types_are_the_clients_and_one_of_the_documentation() -> None:
    assert set(get_args(ErrorType)) - set(get_args(ClientsErrorType)) == {"request_too_large"}
