import pytest

from loadtest.soak.canary import is_same

ANSWER = [{"index": 0, "text": "a", "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}]


def test_the_last_digits_of_a_number_may_differ() -> None:
    near = [{"index": 0, "text": "a", "logprobs": {"content": [{"token": "a", "logprob": -0.50001}]}}]
    assert is_same(near, ANSWER)


@pytest.mark.parametrize(
    "other",
    [
        [],
        ANSWER * 2,
        [ANSWER[0] | {"text": "b"}],
        [ANSWER[0] | {"index": 1}],
        [ANSWER[0] | {"more": None}],
        [ANSWER[0] | {"logprobs": {"content": [{"token": "a", "logprob": -0.51}]}}],
        [ANSWER[0] | {"logprobs": None}],
    ],
)
def test_nothing_else_may(other: object) -> None:
    assert not is_same(other, ANSWER)
