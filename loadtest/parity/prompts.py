"""Default prompts: pieces of different lengths of one text with prose, lists, code and German."""

_TEXT = """\
The mill stands where the river leaves the hills. In spring the water comes high and brown, and the miller opens the
upper gate a hand's breadth at a time, so that the wheel turns no faster than the stones can bear. He learned that
from his mother, who had learned it from a flood. Every sack that leaves the mill has a mark in chalk: one line for
wheat, two for rye, a cross for what the mice have been at. Four things that a traveller should pack: 1. a map, 2. a
knife, 3. dry socks, 4. patience. To boil an egg, bring water to a boil, lower the egg into it with a spoon, wait six
minutes, and put it under cold water. def fibonacci(n): a, b = 0, 1; for _ in range(n): a, b = b, a + b; return a. The
capital of France is Paris, the capital of Italy is Rome, and the capital of Japan is Tokyo. Question: what is seven
times eight? Answer: fifty-six. Question: which planet is the largest? Answer: Jupiter. SELECT name, price FROM goods
WHERE price < 10 ORDER BY price; Es war einmal ein kleines Mädchen, das wohnte mit seiner Großmutter am Rand eines
großen Waldes, und im Winter kamen die Rehe bis vor die Tür. Dear Sir or Madam, thank you for your letter of the third
of May. We are sorry to hear that the clock does not strike. Please send it to the address below, and our workshop
will repair it free of charge. A triangle has three sides, a square has four, and a pentagon has five. {"name": "Ada",
"born": 1815, "fields": ["mathematics", "computing"]} In 1905 a clerk in the patent office at Bern sent four papers to
a journal of physics. The first was about light, the second about dust in water, the third about clocks and trains,
and the fourth, of three pages, about the mass of things. Nobody at the office noticed. He went on reading the
applications of other people, and in the evenings he played the violin, not very well, with friends who did not mind.
"""
_LENGTHS = (1, 3, 6, 12, 24, 48, 96, 160)
"""Lengths in words, used in turn."""
_NUM_PROMPTS = 32


def default_prompts() -> list[str]:
    """32 prompts; no two begin at the same word."""
    words = _TEXT.split()
    step = len(words) // _NUM_PROMPTS
    return [" ".join(words[at * step :][: _LENGTHS[at % len(_LENGTHS)]]) for at in range(_NUM_PROMPTS)]
