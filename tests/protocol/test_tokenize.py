from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.protocol.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest


def test_the_model_need_not_be_named() -> None:
    assert TokenizeRequest.model_validate({"prompt": "x"}).model is None
    assert TokenizeChatRequest.model_validate({"messages": []}).model is None


def test_ids_are_whole_numbers() -> None:
    assert DetokenizeRequest.model_validate({"tokens": [1, 2]}).tokens == [1, 2]
    for wrong in ([1.0], ["1"], [True], 5):
        with pytest.raises(ValidationError):
            DetokenizeRequest.model_validate({"tokens": wrong})
