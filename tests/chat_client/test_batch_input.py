from __future__ import annotations

import pytest

from service.chat_client.batch_input import EXAMPLE, BatchInputError, BatchItem, parse_batch


def test_each_prompt_has_its_number():
    assert parse_batch('["a", "b \\"c\\" [d]"] [1, 20]') == [BatchItem("a", 1), BatchItem('b "c" [d]', 20)]
    assert parse_batch('  ["a","b"][3]  ') == [BatchItem("a", 3), BatchItem("b", 3)]
    assert len(parse_batch(EXAMPLE)) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the prompts stand in square brackets; there is nothing"),
        ("hello", "there is 'hello'"),
        ('["a"]', "the numbers of tokens stand in square brackets; there is nothing"),
        ('["a" "b"] [1]', "the prompts cannot be read at '\"b\"] [1]'"),
        ('["a"', "the prompts cannot be read"),
        ('["a"] [1] x', "nothing may follow the two lists, but ' x' does"),
        ("[] [1]", "there is no prompt"),
        ("[1] [1]", "a prompt is a text in quotation marks, not 1"),
        ('[""] [1]', 'not ""'),
        ('["a"] [0]', "a number of tokens is 1 or more, not 0"),
        ('["a"] [true]', "not true"),
        ('["a"] ["1"]', 'not "1"'),
        ('["a"] []', "1 prompts, but 0 numbers of tokens"),
        ('["a", "b", "c"] [1, 2]', "3 prompts, but 2 numbers of tokens: one for each, or one for all"),
    ],
)
def test_a_slip_is_explained(text: str, told: str):
    with pytest.raises(BatchInputError) as fault:
        parse_batch(text)
    assert told in str(fault.value)
