from __future__ import annotations

from loadtest.parity.comparison import Comparison, Difference, Searches
from loadtest.parity.page import Findings, page

TIE, FAULT = Difference(3, 7, 11, 12, 0.001, True), Difference(4, 0, 21, 22, 3.5, False)


def findings(*differences: Difference, is_rounding: bool = True, ahead: float = -0.2) -> Findings:
    found = Comparison(8, 8 - len(differences), 0.01, 0.001, is_rounding, differences)
    searches = Searches(4, (4, 4, 2, 4), {2: ahead})
    return Findings("a model", "bfloat16 on a CPU", 24, {"alone": found}, 7, 6, 8, 0.5, searches)


def test_it_says_what_is_equal_and_where_the_rest_differs():
    text = page(findings(TIE, FAULT), lambda each: f"a | line\nbehind {each.prompt}", lambda token: f"token{token}")
    assert "| alone | 6 of 8 | 1 of 2 | 0.01 | 0.001 |" in text
    assert "7 of 8 of Headrace's answers, 6 of transformers'" in text
    assert "width 4 with all beams equal: 3 of 4" in text
    assert "- Prompt 2: 2 of 4 beams are equal. Headrace's best one is 0.2 nats more likely" in text
    assert "| 3 | 7 | `a ¦ line⏎behind 3` | `token11` | `token12` | 0.001 | near-tie |" in text
    assert "| 4 | 0 | `a ¦ line⏎behind 4` | `token21` | `token22` | 3.5 | **not a near-tie** |" in text


def test_only_near_ties_are_explained():
    assert findings().all_explained
    assert findings(TIE).all_explained
    assert not findings(TIE, FAULT).all_explained
    assert not findings(is_rounding=False).all_explained
    assert not findings(ahead=0.6).all_explained


def test_logprobs_that_are_no_rounding_are_told():
    text = page(findings(is_rounding=False), lambda each: "", lambda token: "")
    assert "**Logprobs are off by more than 0.5 nats: that is not rounding.**" in text
    assert "not rounding" not in page(findings(), lambda each: "", lambda token: "")


def test_many_differences_are_cut_and_counted():
    text = page(findings(*[TIE] * 25), lambda each: "", lambda token: "")
    assert text.count("near-tie |") == 20
    assert "and 5 more." in text
