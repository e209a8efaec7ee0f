"""Turns patterns into questions, and questions into varied questions.

A pattern is text with choices: `how (do|can) i (start|run) it` stands for four questions. Choices do not nest.
All randomness comes from the generator passed in, so the same seed gives the same text.
"""

import itertools
import random
import re

from loadtest.quickstart.corpus import Corpus, Rules, Topic

_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_SLOT = re.compile(r"<(\w+)>")
_SMALL_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "is",
        "are",
        "do",
        "does",
        "i",
        "it",
        "of",
        "to",
        "in",
        "for",
        "my",
        "me",
        "can",
        "please",
    ]
)
_SYLLABLES = (
    *("ba", "bo", "cra", "den", "dor", "fel", "fli", "gor", "gru", "hax", "jin", "kle", "kom", "lar", "lux"),
    *(
        "mip",
        "nar",
        "nov",
        "pel",
        "plo",
        "quo",
        "rin",
        "sket",
        "tav",
        "tro",
        "ul",
        "vex",
        "wim",
        "yor",
        "zan",
    ),
)
_EVERYDAY_VERBS = (
    "start",
    "stop",
    "run",
    "use",
    "cook",
    "fix",
    "see",
    "change",
    "set",
    "build",
    "open",
    "clean",
    "read",
)


def expand(pattern: str) -> list[str]:
    """Every text that the pattern stands for."""
    parts = _CHOICE.split(pattern)
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return [_tidy("".join(chosen)) for chosen in itertools.product(*options)]


def choose(pattern: str, rng: random.Random) -> str:
    """One of the texts that the pattern stands for."""
    return _tidy(_CHOICE.sub(lambda match: rng.choice(match.group(1).split("|")), pattern))


def all_questions(topic: Topic, rules: Rules) -> list[str]:
    """Every question the topic is trained on, before variation."""
    questions = [question for pattern in topic.ask for question in expand(pattern)]
    for kind, words in topic.framed.items():
        frames = [frame for pattern in rules.frames[kind] for frame in expand(pattern)]
        questions += [_place(word, frame) for word in words for frame in frames]
    return questions


def topic_question(topic: Topic, rules: Rules, rng: random.Random) -> str:
    """One question the topic is trained on; whole questions and framed words are about equally likely."""
    if topic.ask and (not topic.framed or rng.random() < 0.5):
        return choose(rng.choice(topic.ask), rng)
    kind = rng.choice(list(topic.framed))
    return _place(rng.choice(topic.framed[kind]), choose(rng.choice(rules.frames[kind]), rng))


def unknown_question(corpus: Corpus, rng: random.Random) -> str:
    """One question that the model must decline: from a category, an everyday word in a topic's frame, or an
    invented word in a topic's frame."""
    slots, frames = corpus.cannot_know.slots, corpus.rules.frames
    draw = rng.random()
    if draw < 0.60:
        category = rng.choice(list(corpus.cannot_know.categories))
        question = _fill(choose(rng.choice(corpus.cannot_know.categories[category]), rng), slots, rng)
        return _estrange(question, slots, rng) if rng.random() < 0.3 else question
    if draw < 0.70:
        return _place(rng.choice(slots["thing"]), choose(rng.choice(frames["about"]), rng))
    if draw < 0.82:
        return _place(rng.choice(slots["task"]), choose(rng.choice(frames["how_to"]), rng))
    if draw < 0.86:
        return _place(rng.choice(slots["thing"]), choose(rng.choice(frames["support"]), rng))
    return _invented_question(corpus, rng) if draw < 0.98 else _gibberish(rng)


def vary(question: str, rules: Rules, rng: random.Random) -> str:
    """The question as another user might type it: synonyms, small words left out, an opener or a closer, a typo, other
    case and punctuation. Each of these is only sometimes applied, so some questions come back unchanged."""
    if rng.random() < 0.55:
        question = _swap_synonyms(question, rules, rng, rng.choice((1, 1, 2, 3)))
    if rng.random() < 0.12:
        question = _lose_small_word(question, rng)
    if rng.random() < 0.04:
        question = _keywords(question)
    if rng.random() < 0.18:
        question = f"{rng.choice(rules.openers)} {question}"
    if rng.random() < 0.14:
        question = f"{question} {rng.choice(rules.closers)}"
    for chance in (0.15, 0.04):
        if rng.random() < chance:
            question = _mistype(question, rng)
    return dress(question, rules, rng)


def dress(question: str, rules: Rules, rng: random.Random) -> str:
    """The same question in other case and punctuation; `normalise` of it stays the same."""
    draw = rng.random()
    if draw < 0.60:
        words = [rules.proper_names.get(word, word) for word in question.split(" ")]
        question = " ".join(words)
        question = question[:1].upper() + question[1:] if draw < 0.50 else question
    elif draw < 0.65:
        question = question.upper()
    elif draw < 0.82:
        question = question.lower()
    return question.rstrip("?") + rng.choice(("?", "?", "?", "?", "", "", "", ".", "!", " ?", "??"))


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _place(words: str, frame: str) -> str:
    return re.sub(r"\bX\b", lambda _: words, frame)


def _fill(pattern: str, slots: dict[str, tuple[str, ...]], rng: random.Random) -> str:
    return _tidy(_SLOT.sub(lambda match: rng.choice(slots[match.group(1)]), pattern))


def _invented_word(slots: dict[str, tuple[str, ...]], rng: random.Random) -> str:
    """A word of invented syllables, or one that begins like one everyday word and ends like another."""
    if rng.random() < 0.4:
        return "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((2, 2, 3))))
    first, second = (rng.choice(rng.choice(slots["thing"] + slots["task"]).split()) for _ in range(2))
    return first[: len(first) // 2 + 1] + second[len(second) // 2 :]


def _estrange(question: str, slots: dict[str, tuple[str, ...]], rng: random.Random) -> str:
    """The question with one longer word replaced by an invented one."""
    words = question.split(" ")
    longer = [index for index, word in enumerate(words) if len(word) > 4]
    if longer:
        words[rng.choice(longer)] = _invented_word(slots, rng)
    return " ".join(words)


def _gibberish(rng: random.Random) -> str:
    letters = "asdfghjklqweiopxcvbnm"
    return " ".join("".join(rng.choices(letters, k=rng.randint(3, 8))) for _ in range(rng.randint(1, 4)))


def _invented_question(corpus: Corpus, rng: random.Random) -> str:
    frames, slots = corpus.rules.frames, corpus.cannot_know.slots
    kind = rng.choice(("about", "about", "how_to", "support", "flag"))
    word = _invented_word(slots, rng)
    if kind == "flag":
        word = f"--{word}-{_invented_word(slots, rng)}" if rng.random() < 0.5 else f"--{word}"
    if kind == "about":
        word = f"{rng.choice(('a ', 'the ', 'an ', '', 'my ', 'the best '))}{word}"
    if kind == "how_to":
        verb = rng.choice(_EVERYDAY_VERBS)
        word = f"{verb} {rng.choice(('a', 'the', 'my'))} {word}"
    return _place(word, choose(rng.choice(frames[kind]), rng))


def _swap_synonyms(question: str, rules: Rules, rng: random.Random, times: int) -> str:
    padded = f" {question} "
    for group in rng.sample(rules.synonyms, len(rules.synonyms)):
        found = next((phrase for phrase in group if f" {phrase} " in padded), None)
        if found is None:
            continue
        padded = padded.replace(f" {found} ", f" {rng.choice(group)} ", 1)
        times -= 1
        if times == 0:
            break
    return padded.strip()


def _lose_small_word(question: str, rng: random.Random) -> str:
    words = question.split(" ")
    small = [index for index, word in enumerate(words) if word in _SMALL_WORDS]
    if len(words) < 4 or not small:
        return question
    lost = rng.choice(small)
    return " ".join(word for index, word in enumerate(words) if index != lost)


def _keywords(question: str) -> str:
    kept = [word for word in question.split(" ") if word not in _SMALL_WORDS]
    return " ".join(kept) if len(kept) > 1 else question


def _mistype(question: str, rng: random.Random) -> str:
    words = question.split(" ")
    long_words = [index for index, word in enumerate(words) if len(word) > 2 and word.isalpha()]
    if not long_words:
        return question
    index = rng.choice(long_words)
    word = words[index]
    at = rng.randrange(1, len(word) - 1)
    words[index] = rng.choice(
        (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
        )
    )
    return " ".join(words)
