"""The law that lets texts share masks: those at one place have one mask, which is llguidance's."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llguidance import LLMatcher

from service.structured.places import AnyPlaces
from tests.structured.masks import allowed_ids
from tests.structured.tiny_grammars import END_ID


def check_one_place_one_mask(places: AnyPlaces, prototype: LLMatcher, seed: int, preferred: Sequence[int] = ()) -> int:
    """Random walks, by preferred tokens where they are allowed; how many places came twice."""
    draws, masks, num_met_again = random.Random(seed), dict[int, bytes](), 0
    for _ in range(4):
        matcher, place = prototype.deep_copy(), places.first
        for _ in range(20):
            mask = matcher.deep_copy().compute_bitmask()
            if place is not None:
                num_met_again += place in masks
                assert masks.setdefault(place, mask) == mask
            allowed = [token_id for token_id in allowed_ids(memoryview(mask).cast("i").tolist()) if token_id != END_ID]
            if not allowed or matcher.is_stopped():
                break
            liked = [token_id for token_id in allowed if token_id in preferred]
            token_id = draws.choice(liked if liked and draws.random() < 0.7 else allowed)
            assert matcher.consume_token(token_id)
            place = places.after(place, token_id)
    return num_met_again
