"""The quickstart model's example adapter: its answers, as a pirate would give them."""

import re

GREETING, FAREWELL = "Ahoy! ", " Arr!"

_WORDS = {"you": "ye", "your": "yer", "my": "me", "is": "be", "are": "be", "of": "o'", "yes": "aye", "and": "an'"}
_WORD = re.compile(r"(?<![\w`./-])[A-Za-z]+(?![\w`/-]|\.\w)")
"""Matches words outside flags, paths and names in code."""


def pirate(answer: str) -> str:
    """The answer as a pirate would give it. Commands, flags and paths stay as they are."""
    return f"{GREETING}{_WORD.sub(_said, answer)}{FAREWELL}"


def _said(match: re.Match[str]) -> str:
    word = match.group()
    said = _WORDS.get(word.lower())
    if said is None:
        return word
    return said.capitalize() if word[0].isupper() else said
