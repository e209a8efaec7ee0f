"""The engine with grammars, over a model that draws at random: output that ends by itself parses, in any history."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.grammar import Grammar
from service.core.iteration import INVALID_TOKEN_ID, IterationPlan, IterationResult
from service.core.request import FinishReason, Request
from service.core.sampling_params import SamplingParams
from service.errors import InvalidRequest, ServerError
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap
from service.structured.reasoning_matcher import ReasoningGrammar
from service.structured.token_bitmask import TokenBitmask
from tests.engine.harness import Harness
from tests.engine.toy_model import ToyExecutor
from tests.examples import examples
from tests.structured.tiny_grammars import END_ID, TOKENIZER, ids, regex, schema

SIZE = TOKENIZER.num_tokens
END_THINK = ids("</think>")[0]
SCALARS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 99},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^[a-c]{1,3}$"},
        {"type": "boolean"},
        {"enum": ["red", 7, None]},
        {"type": ["null", "boolean"]},
    ]
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = inner.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2})
    unions = st.lists(inner, min_size=2, max_size=2).map(lambda members: {"anyOf": members})
    return arrays | unions | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3).map(_object)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:2],
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(SCALARS, _nested, max_leaves=4)


def make_harness(num_blocks: int = 64, **options: Any) -> Harness:
    toy = ToyExecutor(num_blocks, 4, SIZE)
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    return Harness(num_blocks, 4, executor=toy, masker=masker, **options)


def request(harness: Harness, grammar: Grammar | None, max_tokens: int = 60, n: int = 1, seed: int = 0) -> Request:
    sampling = SamplingParams(max_tokens, n, seed=seed, stop_token_ids=frozenset({END_ID}))
    made = Request(f"request-{len(harness.requests)}", (5, 6, 7), sampling, 0.0, grammar=grammar)
    harness.requests[made.request_id] = made
    assert harness.add(made)
    return made


def text_of(harness: Harness, request_id: str, choice: int = 0) -> str:
    return TOKENIZER.decode([token for token in harness.tokens[request_id, choice] if token != END_ID])


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """The few keywords that SCHEMAS uses, by their definitions."""
    if "anyOf" in schema:
        return any(satisfies(value, member) for member in schema["anyOf"])
    if "enum" in schema:
        return any(value == member and type(value) is type(member) for member in schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(_CHECKS[kind](value, schema) for kind in kinds)


_CHECKS = {
    "null": lambda value, schema: value is None,
    "boolean": lambda value, schema: isinstance(value, bool),
    "integer": lambda value, schema: type(value) is int and schema["minimum"] <= value <= schema["maximum"],
    "string": lambda value, schema: (
        isinstance(value, str)
        and (set(value) <= set("abc") and 1 <= len(value) <= 3 if "pattern" in schema else len(value) <= 5)
    ),
    "array": lambda value, schema: (
        isinstance(value, list) and 1 <= len(value) <= 2 and all(satisfies(item, schema["items"]) for item in value)
    ),
    "object": lambda value, schema: (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(schema["properties"])
        and all(satisfies(item, schema["properties"][name]) for name, item in value.items())
    ),
}


@given(schemas=st.lists(SCHEMAS, min_size=1, max_size=3), n=st.integers(1, 3), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_what_ends_by_itself_parses(schemas: list[dict[str, Any]], n: int, seed: int, data: st.DataObject) -> None:
    """Blocks are few: requests preempt each other, and are recomputed or swapped in."""
    swaps = data.draw(st.booleans())
    harness = make_harness(
        num_blocks=data.draw(st.integers(54, 70)),
        preemption=AlwaysSwap() if swaps else AlwaysRecompute(),
        num_host_blocks=128 if swaps else 0,
        overlap=data.draw(st.booleans()),
    )
    asked = [request(harness, schema(json.dumps(each)), 68, n, seed) for each in schemas]
    free = request(harness, None, 30, 1, seed)
    harness.run()
    for each, made in zip(schemas, asked, strict=True):
        for choice in range(n):
            reason = harness.reasons[made.request_id, choice]
            if reason is FinishReason.STOP:
                assert satisfies(json.loads(text_of(harness, made.request_id, choice)), each)
            else:
                assert len(harness.tokens[made.request_id, choice]) == 68
    assert (free.request_id, 0) in harness.reasons


@pytest.mark.parametrize("preemption", [AlwaysRecompute(), AlwaysSwap()])
def test_a_preemption_changes_nothing(preemption: Any) -> None:
    grammar = regex("[a-z]{40}[0-9]{10}")
    calm = make_harness()
    made = [request(calm, grammar, seed=seed) for seed in (1, 2, 3)]
    calm.run()
    crowded = make_harness(num_blocks=17, preemption=preemption, num_host_blocks=64)
    for seed in (1, 2, 3):
        request(crowded, grammar, seed=seed)
    crowded.run()
    assert sum(stats.num_preemptions for stats, _, _ in crowded.sink.requests) > 0
    for each in made:
        assert crowded.tokens[each.request_id, 0] == calm.tokens[each.request_id, 0]
        assert len(text_of(calm, each.request_id)) == 50


def test_choices_share_the_first_mask_and_then_differ() -> None:
    toy = ToyExecutor(64, 4, SIZE)
    harness = Harness(64, 4, executor=toy, masker=TokenBitmask(8, SIZE, frozenset({END_ID})))
    made = request(harness, regex("[a-z]{30}"), n=3, seed=1)
    harness.step()
    assert toy.plans[0].masks is not None
    assert toy.plans[0].masks.rows == [0, 0, 0]
    harness.step()
    assert toy.plans[1].masks is not None
    assert toy.plans[1].masks.rows == [0, 1, 2]
    harness.run()
    assert len({text_of(harness, made.request_id, choice) for choice in range(3)}) == 3


def test_the_last_token_of_a_grammar_ends_the_choice_without_another_draw() -> None:
    harness = make_harness()
    made = request(harness, regex("[0-9]{3}"), max_tokens=3)
    harness.run()
    assert harness.reasons[made.request_id, 0] is FinishReason.STOP, "complete, though it is as long as it may be"
    assert END_ID not in harness.tokens[made.request_id, 0]


def test_a_grammar_that_fails_takes_its_request_only() -> None:
    class Disobedient(ToyExecutor):
        def execute(self, plan: IterationPlan) -> IterationResult:
            result = super().execute(plan)
            token_ids = tuple(ids("x")[0] for _ in result.token_ids)
            self.note_drawn(plan, token_ids)
            return IterationResult(token_ids, result.finished_transfers)

    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    harness = Harness(64, 4, executor=Disobedient(64, 4, SIZE), masker=masker)
    constrained = request(harness, regex("[0-9]{3}"), n=2)
    free = request(harness, None, max_tokens=5)
    harness.run()
    assert isinstance(harness.finals[constrained.request_id].error, ServerError)
    assert harness.finals[free.request_id].error is None


def test_who_has_no_grammar_has_no_mask() -> None:
    toy = ToyExecutor(64, 4, SIZE)
    harness = Harness(64, 4, executor=toy, masker=TokenBitmask(8, SIZE, frozenset({END_ID})))
    request(harness, None, max_tokens=4)
    request(harness, regex("[0-9]{2}"))
    harness.run()
    assert toy.plans[0].masks is not None
    assert toy.plans[0].masks.rows == [-1, 0]
    assert toy.plans[-1].masks is None, "the grammar has ended before"


@pytest.mark.parametrize("contradicts", [True, False])
def test_a_draw_of_nothing_is_the_clients_fault_if_it_may_be(contradicts: bool) -> None:
    class Empty(ToyExecutor):
        def execute(self, plan: IterationPlan) -> IterationResult:
            result = super().execute(plan)
            return IterationResult((INVALID_TOKEN_ID,) * len(result.token_ids), result.finished_transfers)

    harness = Harness(64, 4, executor=Empty(64, 4, SIZE), masker=TokenBitmask(8, SIZE, frozenset({END_ID})))
    sampling = SamplingParams(9, allowed_token_ids=(5,) if contradicts else None, stop_token_ids=frozenset({END_ID}))
    assert harness.add(Request("r", (5, 6), sampling, 0.0, grammar=regex("ab")))
    harness.run()
    assert isinstance(harness.finals["r"].error, InvalidRequest) is contradicts


def test_overlapped_iterations_go_on_beside_a_grammar() -> None:
    """A request's next mask depends on the token being drawn, so it skips an iteration, without delaying others."""
    harness = make_harness(overlap=True)
    constrained = request(harness, regex("[0-9]{30}"), max_tokens=30)
    free = request(harness, None, max_tokens=20)
    counts = []
    for _ in range(12):
        harness.step()
        counts.append(tuple(len(harness.tokens.get((each.request_id, 0), ())) for each in (constrained, free)))
    assert [after[1] - before[1] for before, after in itertools.pairwise(counts)] == [1] * 11
    assert counts[-1][0] >= 5
    harness.run()
    assert len(text_of(harness, constrained.request_id)) == 30


def test_masks_are_begun_before_the_executor_launches_and_awaited_by_it() -> None:
    """In between, the executor launches the forward pass (`ModelRunner.launch`)."""
    order = []

    class Masker(TokenBitmask):
        def begin(self, matchers, rows):
            order.append("begin")
            return super().begin(matchers, rows)

    class Toy(ToyExecutor):
        def launch(self, plan):
            order.append("launch")
            return super().launch(plan)

    harness = Harness(64, 4, executor=Toy(64, 4, SIZE), masker=Masker(8, SIZE, frozenset({END_ID})))
    request(harness, regex("[0-9]{2}"))
    harness.run()
    assert order == ["begin", "launch"] * 2


@given(
    budgets=st.lists(st.none() | st.integers(0, 12), min_size=2, max_size=4),
    n=st.integers(1, 3),
    overlap=st.booleans(),
    swaps=st.booleans(),
)
@settings(max_examples=examples(40), deadline=None)
def test_who_may_think_so_long_thinks_no_longer_and_as_alone(
    budgets: list[int | None], n: int, overlap: bool, swaps: bool
) -> None:
    """Side by side, preempted or not, each writes what it writes alone. Requests without a budget are not limited."""

    def written(harness: Harness, of: Sequence[tuple[int, int | None]]) -> list[list[list[int]]]:
        asked = [request(harness, thinking(budget), 30, n, seed=index) for index, budget in of]
        harness.run()
        return [[harness.tokens[each.request_id, choice] for choice in range(n)] for each in asked]

    policy = {"preemption": AlwaysSwap() if swaps else AlwaysRecompute(), "num_host_blocks": 128 if swaps else 0}
    numbered = list(enumerate(budgets))
    together = written(make_harness(num_blocks=n * 10 + 4, overlap=overlap, **policy), numbered)
    for (index, budget), choices in zip(numbered, together, strict=True):
        assert [choices] == written(make_harness(), [(index, budget)])
        for tokens in choices:
            if budget is not None and len(tokens) > budget:
                assert END_THINK in tokens[: budget + 1] or END_ID in tokens[: budget + 1]


def thinking(budget: int | None) -> Grammar | None:
    """The grammar of a prompt that has begun the reasoning."""
    return None if budget is None else ReasoningGrammar(None, END_THINK, None, budget)
