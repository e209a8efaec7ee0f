from __future__ import annotations

import pytest

from service.api.calls.field_names import fields_named
from service.errors import InvalidRequest, Overloaded


def test_a_refusal_names_the_field_that_the_client_has_sent() -> None:
    refusal = InvalidRequest("messages[2].content is required.", param="messages[2].content")
    with pytest.raises(InvalidRequest) as told, fields_named(lambda name: name.replace("messages[2]", "input[4]")):
        raise refusal
    assert told.value is refusal, "its status and code are its own"
    assert (refusal.message, refusal.param) == ("input[4].content is required.", "input[4].content")


def test_a_refusal_that_names_none_is_left_alone() -> None:
    with pytest.raises(Overloaded, match="later"), fields_named(str.upper):
        raise Overloaded("later")
