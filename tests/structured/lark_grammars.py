"""Random Lark grammars: few terminals that begin alike, rules that may be empty and call each other."""

from __future__ import annotations

from hypothesis import strategies as st

_TERMINALS = st.sampled_from(
    [
        '"a"',
        '"ab"',
        '"b"',
        '"("',
        '")"',
        '"+"',
        '"A"i',
        "/[a-c]+/",
        "/a*b/",
        "/[ab]{2}/",
        '" "',
        '"é"',
        "/\\w/",
        "WORD",
        "T",
    ]
)
_TERMINAL_BODIES = st.sampled_from(['"a".."c"', '"ab" | "a"', '("a" | "b")+', '"b"~2..3', "/[^(]/", '"=" WORD'])
_IGNORED = st.sampled_from(["", '%ignore " "', "%ignore /[ +]+/", '%ignore "a"', '%ignore WORD\n%ignore " "'])
_SIGNS = st.sampled_from(["", "", "", "?", "*", "+", "~1..2"])


def _sequences(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    part = st.tuples(inner, _SIGNS).map("".join)
    return st.lists(part, min_size=1, max_size=3).map(" ".join)


def _bodies(names: list[str]) -> st.SearchStrategy[str]:
    values = _TERMINALS | st.sampled_from(names)
    groups = st.lists(_sequences(values), min_size=1, max_size=2).map(lambda each: f"({' | '.join(each)})")
    return st.lists(_sequences(values | groups), min_size=1, max_size=3).map(" | ".join)


@st.composite
def lark_grammars(draw: st.DrawFn) -> str:
    names = ["start", "x", "y"][: draw(st.integers(1, 3))]
    rules = [f"{name}: {draw(_bodies(names))}" for name in names]
    terminals = ["WORD: /[a-b]+/", f"T: {draw(_TERMINAL_BODIES)}"]
    return "\n".join([*rules, *terminals, draw(_IGNORED)])
