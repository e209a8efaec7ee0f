"""Instructor against the real service: typed answers in each of its modes. Installed by the extra `clients`."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
instructor = pytest.importorskip("instructor")


class Weather(BaseModel, extra="forbid"):
    """How the weather is."""

    city: str = Field(max_length=10)
    unit: Literal["C", "F"]


class Anything(BaseModel):
    """What any object is."""


def ask(base_url: str, mode: str, **fields: Any) -> Any:
    client = instructor.from_openai(
        OpenAI(base_url=base_url, api_key="none", max_retries=0), mode=getattr(instructor.Mode, mode)
    )
    with client.client:
        return client.create(
            model=MODEL,
            messages=[{"role": "user", "content": "How is Oslo?"}],
            max_retries=0,
            temperature=0,
            max_tokens=100,
            **fields,
        )


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_a_typed_answer(base_url: str, mode: str) -> None:
    assert isinstance(ask(base_url, mode, response_model=Weather), Weather)


def test_json_mode(base_url: str) -> None:
    """The fields stand in the prompt only, which a small model does not heed."""
    assert isinstance(ask(base_url, "JSON", response_model=Anything, seed=1), Anything)


def test_a_typed_answer_that_grows(base_url: str) -> None:
    *_, last = ask(base_url, "TOOLS", response_model=instructor.Partial[Weather], stream=True)
    assert last.unit in ("C", "F")
