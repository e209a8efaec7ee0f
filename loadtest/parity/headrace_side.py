"""Answers of `headrace serve`, over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from loadtest.direct_http import opened
from loadtest.parity.comparison import Answer

_TIMEOUT_S = 1800.0
_ID_PREFIX = "token_id:"

Prompt = tuple[int, ...]

_T = TypeVar("_T")


class HeadraceSide:
    """The server at `base_url`. Each answer has `max_tokens` tokens; end-of-sequence tokens are ignored. Raises
    RuntimeError with the server's message if it refuses."""

    def __init__(self, base_url: str, max_tokens: int) -> None:
        self._base_url = base_url
        self._max_tokens = max_tokens

    def tokenize(self, text: str) -> Prompt:
        """Tokenize as for a prompt of `/v1/completions`."""
        return tuple(self._post("/tokenize", {"prompt": text})["tokens"])

    def alone(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Answer the prompts one after another."""
        return [self._greedy(prompt) for prompt in prompts]

    def at_once(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Answer all prompts in one batch, as far as it has room, without the prefix cache."""

        def asked(prompt: Prompt) -> Answer:
            return self._greedy(prompt, cache_salt="at once")

        return _side_by_side(asked, prompts)

    def beams(self, prompts: Sequence[Prompt], width: int) -> list[list[tuple[int, ...]]]:
        """All `width` beams of each prompt, best first."""

        def searched(prompt: Prompt) -> list[tuple[int, ...]]:
            choices = self._complete(prompt, use_beam_search=True, n=width)
            return [tuple(choice["token_ids"]) for choice in choices]

        return _side_by_side(searched, prompts)

    def _greedy(self, prompt: Prompt, **fields: Any) -> Answer:
        (choice,) = self._complete(prompt, logprobs=1, return_tokens_as_token_ids=True, **fields)
        told = choice["logprobs"]
        token_ids = tuple(int(token.removeprefix(_ID_PREFIX)) for token in told["tokens"])
        return Answer(token_ids, tuple(told["token_logprobs"]))

    def _complete(self, prompt: Prompt, **fields: Any) -> list[dict[str, Any]]:
        body = {
            "prompt": prompt,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }
        choices: list[dict[str, Any]] = self._post("/v1/completions", body)["choices"]
        return sorted(choices, key=lambda choice: int(choice["index"]))

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self._base_url + path, data, {"Content-Type": "application/json"})
        try:
            with opened(request, _TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"{path}: {refused.code}: {refused.read().decode(errors='replace')}") from None


def _side_by_side(ask: Callable[[Prompt], _T], prompts: Sequence[Prompt]) -> list[_T]:
    with ThreadPoolExecutor(max(1, len(prompts))) as pool:
        return list(pool.map(ask, prompts))
