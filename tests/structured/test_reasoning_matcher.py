from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.grammar import ThinkingBudget
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.reasoning_matcher import ReasoningGrammar, ReasoningMatcher, limited
from tests.examples import examples
from tests.structured.tiny_grammars import END_ID, ids, regex

THINK, END_THINK = TOKENS = 400, 401
AB = regex("ab")


def test_a_grammar_begins_after_the_reasoning() -> None:
    matcher = ReasoningGrammar(regex("ab"), END_THINK, None).start()
    for token_id in [*ids("anything, ab at all"), END_THINK]:
        assert matcher.constraint is None
        assert not matcher.is_finished
        assert matcher.accept(token_id)
    assert matcher.fork().constraint is not None
    assert not matcher.fork().accept(ids("x")[0])
    assert all(matcher.accept(token_id) for token_id in ids("a") + ids("b"))
    assert matcher.is_finished


def test_reasoning_may_begin_with_the_first_token_only() -> None:
    grammar = ReasoningGrammar(regex("ab"), END_THINK, THINK)
    thinking = grammar.start()
    assert thinking.also_allowed == THINK
    assert thinking.accept(THINK)
    assert thinking.constraint is None
    assert thinking.accept(ids("x")[0])
    assert thinking.accept(END_THINK)
    assert thinking.constraint is not None
    answering = grammar.start()
    assert answering.accept(ids("a")[0])
    assert answering.also_allowed is None
    assert not answering.accept(THINK)


def budget(num_tokens: int, *, is_thinking: bool) -> ThinkingBudget:
    return ThinkingBudget(num_tokens, THINK, END_THINK, is_thinking)


def forced(matcher: ReasoningMatcher) -> int | None:
    """The only id that may come, if there is one."""
    return matcher.constraint if isinstance(matcher.constraint, int) and not matcher.allows_anything else None


@given(
    num=st.integers(0, 6),
    is_thinking=st.booleans(),
    has_grammar=st.booleans(),
    wanted=st.lists(st.sampled_from([*TOKENS, *ids("xab")]), max_size=24),
    data=st.data(),
)
@settings(max_examples=examples(200), deadline=None)
def test_no_more_is_thought_than_the_budget_allows(
    num: int, is_thinking: bool, has_grammar: bool, wanted: list[int], data: st.DataObject
) -> None:
    """Whatever a model wants to write, and wherever its choice is forked: its reasoning is ended behind the last token
    of the budget, and not before."""
    grammar: CompiledGrammar | ReasoningGrammar | None = None
    if has_grammar:
        grammar = ReasoningGrammar(AB, END_THINK, None if is_thinking else THINK)
    made = limited(grammar, budget(num, is_thinking=is_thinking))
    assert isinstance(made, ReasoningGrammar)
    matcher = made.start()
    written: list[int] = [THINK] if is_thinking else []
    for token_id in wanted:
        if data.draw(st.booleans()):
            matcher = matcher.fork()
        only = forced(matcher)
        if not matcher.accept(token_id if only is None else only):
            break
        written.append(token_id if only is None else only)
        begun = written.index(THINK) + 1 if THINK in written else len(written)
        ended = written.index(END_THINK, begun) if END_THINK in written[begun:] else len(written)
        assert ended - begun <= num
        assert (forced(matcher) == END_THINK) is (THINK in written and ended - begun == num and ended == len(written))


def test_without_a_grammar_only_the_end_of_the_reasoning_is_ever_forced() -> None:
    made = limited(None, budget(1, is_thinking=False))
    matcher = made.start()
    for token_id in [*ids("x"), THINK]:
        assert matcher.allows_anything
        assert matcher.accept(token_id)
    assert matcher.allows_anything, "to end too, as without a budget"
    assert matcher.accept(ids("x")[0])
    assert not matcher.allows_anything
    assert matcher.accept(END_THINK)
    for token_id in [*ids("ab"), THINK, *ids("xx"), END_ID]:
        assert matcher.allows_anything, "it has thought"
        assert not matcher.is_finished
        assert matcher.accept(token_id)
    assert matcher.refusal is None


def test_a_grammar_that_leaves_no_room_for_reasoning_has_nothing_to_limit() -> None:
    assert limited(AB, budget(3, is_thinking=False)) is AB
