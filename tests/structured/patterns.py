"""Random regexes of a few characters."""

from __future__ import annotations

from hypothesis import strategies as st

_MEMBERS = ["a", "b", "a-c", "0-1", r"\d", r"\w", r"\s", "_", ".", " ", "-", r"\]", r"\n", "é"]
_SETS = st.tuples(st.sampled_from(["[", "[^"]), st.lists(st.sampled_from(_MEMBERS), min_size=1, max_size=3)).map(
    lambda parts: parts[0] + "".join(parts[1]) + "]"
)
_SINGLES = _SETS | st.sampled_from(["a", "b", "c", "ab", " ", r"\.", ".", r"\d", r"\w", r"\S", r"\n", "é", "0"])
_SIGNS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(inner, _SIGNS).map(lambda parts: f"({parts[0]}){parts[1]}")
    branches = st.lists(inner, min_size=2, max_size=3).map("|".join)
    return groups | branches | st.lists(inner, min_size=2, max_size=3).map("".join)


PATTERNS = st.recursive(st.tuples(_SINGLES, _SIGNS).map("".join), _larger, max_leaves=6)
