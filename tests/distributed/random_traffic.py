"""Requests of every kind, for those who compare what comes of them with the oracle."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from service.core.request import Request
from tests.engine.harness import Harness
from tests.engine.toy_grammar import ToyGrammar


def add_random_request(harness: Harness, chance: Random, seed: int) -> Request:
    """Beams, choices, a grammar, or none of these; then up to four steps."""
    prompt = tuple(chance.choices(range(50), k=chance.randint(1, 20)))
    kind = chance.randrange(4)
    if kind == 0:
        request = harness.beam_request(prompt, chance.randint(1, 8), width=3, n=2)
    else:
        request = harness.request(prompt, chance.randint(1, 15), n=chance.choice([1, 1, 3]), seed=seed)
    if kind == 1:
        request = harness.requests[request.request_id] = replace(request, grammar=ToyGrammar(4))
    harness.add(request)
    for _ in range(chance.randint(0, 4)):
        harness.step()
    return request
