"""A few calls whose answers are known in advance: other traffic must not change them."""

import asyncio
import json
import math
import random
from typing import Any

from loadtest.soak.hostile_calls import MODEL
from loadtest.soak.raw_connection import RawConnection, post_bytes

_RETRY_S = 0.1
_LOGPROB_TOLERANCE = 1e-3
"""Even in fp32, the last digits of floating-point sums depend on the batch."""

_CALLS: tuple[dict[str, Any], ...] = (
    {"seed": 7, "n": 3},
    {"temperature": 0},
    {"seed": 1, "regex": "[a-z ]{5,40}"},
    {"temperature": 0, "stop": ["e"], "max_tokens": 60},
    {"temperature": 0, "logprobs": True},
)


class CanaryError(Exception):
    """The canary's call was refused or got no answer."""


async def golden_answers(port: int, timeout_s: float) -> list[Any]:
    """The choices of the canary's calls: seeded, greedy, with a pattern, with a stop string, with logprobs.

    If the server is full, asks again until the call is accepted. Raises CanaryError.
    """
    question = {"role": "user", "content": "What is Headrace?"}
    ask = {"model": MODEL, "max_tokens": 30, "messages": [question]}
    try:
        async with asyncio.timeout(timeout_s):
            return [await _choices_of(port, ask | change) for change in _CALLS]
    except TimeoutError:
        raise CanaryError(f"no answer within {timeout_s:g} s") from None


def is_same(now: Any, before: Any) -> bool:
    """Whether two answers are equal: floats approximately, everything else exactly."""
    if isinstance(now, float) and isinstance(before, float):
        return math.isclose(now, before, abs_tol=_LOGPROB_TOLERANCE)
    if isinstance(now, dict) and isinstance(before, dict):
        return now.keys() == before.keys() and all(is_same(now[name], before[name]) for name in now)
    if isinstance(now, list) and isinstance(before, list):
        return len(now) == len(before) and all(map(is_same, now, before))
    return bool(now == before)


async def _choices_of(port: int, body: dict[str, Any]) -> Any:
    while True:
        connection = await RawConnection.to(port)
        try:
            connection.writer.write(post_bytes("/v1/chat/completions", body))
            answer = await connection.answer()
        finally:
            connection.leave(random.Random(0))
        if answer is None or answer.status not in (200, 503):
            raise CanaryError(f"{body} was answered with {answer}")
        if answer.status == 200:
            return json.loads(answer.body)["choices"]
        await asyncio.sleep(_RETRY_S)
