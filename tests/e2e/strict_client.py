"""openai-python as the tests use it: an answer that is not of OpenAI's types is an error, and nothing is retried."""

from __future__ import annotations

from openai import OpenAI


def strict_client(server_url: str) -> OpenAI:
    """Whoever asks for it closes it."""
    return OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)
