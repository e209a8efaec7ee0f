from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.protocol.adapters import LoadAdapter, UnloadAdapter


def test_what_vllms_clients_send() -> None:
    assert LoadAdapter.model_validate({"lora_name": "a", "lora_path": "b"}).load_inplace is False
    assert UnloadAdapter.model_validate({"lora_name": "a", "lora_int_id": 3}).lora_name == "a"


@pytest.mark.parametrize("more", [{"lora_rank": 3}, {"load_inplace": "yes"}, {"lora_path": None}])
def test_what_is_not_known_is_no_part_of_them(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoadAdapter.model_validate({"lora_name": "a", "lora_path": "b", **more})
