from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from service.errors import ConfigError
from service.settings.reader import read_settings
from service.settings.token_count import TokenCount


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ("8192", 8192),
        (8192, 8192),
        ("8k", 8000),
        ("8K", 8192),
        ("25.6k", 25_600),
        ("0.29k", 290),
        (" 1m ", 10**6),
        ("1M", 2**20),
        ("1g", 10**9),
        ("1G", 2**30),
    ],
)
def test_a_number_of_tokens_is_read_as_vllm_reads_it(written: str | int, tokens: int):
    assert TypeAdapter(TokenCount).validate_python(written) == tokens


@pytest.mark.parametrize(
    "written", ["8.5K", "8kk", "k", "8 k", "8t", "-8k", "8e3k", "٨k", "1.k", "9" * 13 + "k", "8,000"]
)
def test_what_is_no_number_of_tokens(written: str):
    with pytest.raises(ValidationError):
        TypeAdapter(TokenCount).validate_python(written)


def test_the_context_may_be_written_short_on_the_command_line_and_around_it(monkeypatch: pytest.MonkeyPatch):
    assert read_settings(["--max-model-len", "8k"]).max_model_len == 8000
    monkeypatch.setenv("HEADRACE_MAX_MODEL_LEN", "4K")
    assert read_settings([]).max_model_len == 4096
    with pytest.raises(ConfigError, match=r"max-model-len: no decimals may stand before K, .* use k"):
        read_settings(["--max-model-len", "8.5K"])
    with pytest.raises(ConfigError, match=r"max-model-len: .*greater than or equal to 2"):
        read_settings(["--max-model-len", "0k"])
