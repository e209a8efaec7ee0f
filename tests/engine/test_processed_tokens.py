from __future__ import annotations

from service.core.sequence import Sequence
from service.engine.processed_tokens import ProcessedTokens


def test_tokens_count_as_what_they_were():
    sequence = Sequence(0, 0, 0, list(range(10)), num_prompt_tokens=10, max_num_tokens=20)
    tokens = ProcessedTokens()
    tokens.add(sequence, 0, 6, num_drawn=0)
    tokens.add(sequence, 6, 10, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed, tokens.generated) == (10, 0, 1)


def test_what_a_preemption_threw_away_is_recomputed_and_no_prompt():
    """Preempted after 8 of 10 prompt tokens: these come again in two chunks, the second with the prompt's rest."""
    sequence = Sequence(0, 0, 0, list(range(10)), num_prompt_tokens=10, max_num_tokens=20)
    sequence.recompute_until = 8
    tokens = ProcessedTokens()
    tokens.add(sequence, 0, 5, num_drawn=0)
    assert (tokens.prompt, tokens.recomputed) == (0, 5)
    tokens.add(sequence, 5, 10, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed) == (2, 8)


def test_a_decode_is_neither():
    sequence = Sequence(0, 0, 0, list(range(11)), num_prompt_tokens=10, max_num_tokens=20)
    tokens = ProcessedTokens()
    tokens.add(sequence, 10, 11, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed, tokens.generated) == (0, 0, 1)
