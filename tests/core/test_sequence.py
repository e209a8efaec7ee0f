from __future__ import annotations

from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.core.sequence import Sequence


def make_sequence(max_num_tokens: int = 6) -> Sequence:
    return Sequence(7, 0, 0, [1, 2, 3], 3, max_num_tokens)


def test_all_tokens_but_a_last_one_are_computed():
    sequence = make_sequence()
    assert sequence.num_tokens_to_compute == 3
    sequence.token_ids += [4, 5]
    sequence.num_computed_tokens = 4
    assert sequence.num_tokens_to_compute == 1
    assert not sequence.is_drawn_out
    sequence.token_ids.append(6)
    assert sequence.is_drawn_out
    assert (sequence.num_tokens_to_cache, sequence.num_tokens_to_compute) == (5, 1)


def test_a_prompt_is_computed_whole_even_for_one_token():
    assert make_sequence(max_num_tokens=4).num_tokens_to_compute == 3


def test_draws_that_are_not_known_are_filled_in_or_forgotten():
    sequence = make_sequence()
    sequence.token_ids += [PENDING_TOKEN_ID, PENDING_TOKEN_ID]
    sequence.set_drawn(3, 8)
    assert sequence.token_ids == [1, 2, 3, 8, PENDING_TOKEN_ID]
    sequence.drop_pending()
    assert sequence.token_ids == [1, 2, 3, 8]
    sequence.set_drawn(4, 9)
    assert sequence.num_output_tokens == 2
