import re

import pytest

from loadtest.quickstart.corpus import load_corpus
from loadtest.quickstart.pirate_speech import FAREWELL, GREETING, pirate

CODE = re.compile(r"--[\w-]+|https?://\S+|\w*/\w[\w/]*|\w+_\w+|\w+\.\w+")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("You may stop it.", "Ahoy! Ye may stop it. Arr!"),
        ("It is yours and mine, and your keys are safe.", "Ahoy! It be yours an' mine, an' yer keys be safe. Arr!"),
        ("Set --is-your or my_name in of/you.", "Ahoy! Set --is-your or my_name in of/you. Arr!"),
    ],
)
def test_a_pirate_says_it_otherwise(answer: str, said: str) -> None:
    assert pirate(answer) == said


def test_every_answer_is_told_apart_and_keeps_its_commands() -> None:
    answers = [*(topic.answer for topic in load_corpus().topics), *load_corpus().cannot_know.answers]
    assert sum(bool(CODE.search(answer)) for answer in answers) > 50
    for answer in answers:
        said = pirate(answer)
        assert said.startswith(GREETING)
        assert said.endswith(FAREWELL)
        assert CODE.findall(said) == CODE.findall(answer)
    assert len({pirate(answer) for answer in answers}) == len(set(answers))
