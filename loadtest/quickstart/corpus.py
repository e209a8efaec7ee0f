"""The committed text that the quickstart model learns from, read into values.

`corpus/topics/*.yaml` and `corpus/small_talk.yaml` hold topics, each with one canonical answer. A topic's questions
are patterns, see `phrasing.py`: `ask` holds whole questions, `about`, `how_to`, `support` and `flag` hold words that
the frames of the same name in `rules.yaml` turn into questions. `corpus/cannot_know.yaml` holds questions about
everything else and the sentences that decline them. `corpus/held_back.yaml` holds questions for the evaluation only.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

CORPUS_DIRECTORY = Path(__file__).parent / "corpus"
FRAME_KINDS = ("about", "how_to", "support", "flag")


@dataclass(frozen=True)
class Topic:
    """One thing the model knows. `framed[kind]` are the words for the frames of that kind."""

    id: str
    answer: str
    ask: tuple[str, ...]
    framed: dict[str, tuple[str, ...]]
    held_back: tuple[str, ...]


@dataclass(frozen=True)
class CannotKnow:
    """What the model must decline: patterns with <slot> names, the slots' words, and the accepted answers."""

    answers: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    categories: dict[str, tuple[str, ...]]
    held_back: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """How questions vary. A group of `synonyms` may replace each other in any question."""

    frames: dict[str, tuple[str, ...]]
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    synonyms: tuple[tuple[str, ...], ...]
    proper_names: dict[str, str]
    system_prompts: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """All committed text. `topics` are those about Headrace, `num_facts` of them, followed by small talk."""

    topics: tuple[Topic, ...]
    num_facts: int
    cannot_know: CannotKnow
    rules: Rules
    plain_text: tuple[str, ...]

    @property
    def facts(self) -> tuple[Topic, ...]:
        """The topics about Headrace."""
        return self.topics[: self.num_facts]


def normalise(question: str) -> str:
    """Two questions are the same question if and only if their normal forms are equal: case, punctuation
    and spacing do not count."""
    return " ".join(re.findall(r"[a-z0-9_+*/-]+", question.lower().replace("'", "")))


@lru_cache(maxsize=1)
def load_corpus() -> Corpus:
    """The corpus of this checkout. Raises ValueError when a topic's id or answer occurs twice."""
    held_back = _read(CORPUS_DIRECTORY / "held_back.yaml")
    facts = [entry for file in sorted((CORPUS_DIRECTORY / "topics").glob("*.yaml")) for entry in _read(file)]
    entries = [*facts, *_read(CORPUS_DIRECTORY / "small_talk.yaml")]
    topics = tuple(_topic(entry, _strings(held_back["topics"][entry["id"]])) for entry in entries)
    for name, values in (("id", [t.id for t in topics]), ("answer", [t.answer for t in topics])):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"topics share an {name}: {twice}")
    return Corpus(
        topics=topics,
        num_facts=len(facts),
        cannot_know=_cannot_know(_read(CORPUS_DIRECTORY / "cannot_know.yaml"), _strings(held_back["cannot_know"])),
        rules=_rules(_read(CORPUS_DIRECTORY / "rules.yaml")),
        plain_text=_strings(_read(CORPUS_DIRECTORY / "plain_text.yaml")),
    )


def _read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _strings(values: list[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def _topic(entry: dict[str, Any], held_back: tuple[str, ...]) -> Topic:
    return Topic(
        id=entry["id"],
        answer=" ".join(entry["answer"].split()),
        ask=_strings(entry["ask"]) if "ask" in entry else (),
        framed={kind: _strings(entry[kind]) for kind in FRAME_KINDS if kind in entry},
        held_back=held_back,
    )


def _cannot_know(entry: dict[str, Any], held_back: tuple[str, ...]) -> CannotKnow:
    return CannotKnow(
        answers=_strings(entry["answers"]),
        slots={name: _strings(words) for name, words in entry["slots"].items()},
        categories={name: _strings(patterns) for name, patterns in entry["categories"].items()},
        held_back=held_back,
    )


def _rules(entry: dict[str, Any]) -> Rules:
    return Rules(
        frames={kind: _strings(entry["frames"][kind]) for kind in FRAME_KINDS},
        openers=_strings(entry["openers"]),
        closers=_strings(entry["closers"]),
        synonyms=tuple(_strings(group) for group in entry["synonyms"]),
        proper_names={name.lower(): name for name in _strings(entry["proper_names"])},
        system_prompts=_strings(entry["system_prompts"]),
    )
