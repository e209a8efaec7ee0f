from __future__ import annotations

from dataclasses import replace

import pytest

from service.composition.engine_assembly import make_engine
from service.composition.model_parts import ModelParts
from service.core.clock import MonotonicClock
from service.core.events import FinalEvent, TokenEvent
from service.core.iteration import IterationPlan, IterationResult
from service.core.layer_groups import LayerGroups
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.engine.engine import Engine
from service.engine.outbox import one_by_one
from service.engine.ports import Executor
from service.settings.settings import Settings
from tests.composition.conftest import SMALL, new_recorder

PROMPT = tuple(range(5, 38))


def assemble(parts: ModelParts, executor: Executor | None = None, **changed: object) -> Engine:
    engine, _ = make_engine(Settings(**SMALL, **changed), parts, new_recorder(), MonotonicClock(), executor)
    return engine


def ids_of(engine: Engine, request_id: str, max_tokens: int = 4) -> tuple[list[int], FinalEvent]:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    engine.requests.add(Request(request_id, PROMPT, sampling, arrival_s=0.0))
    events = []
    while engine.has_work:
        engine.step()
        events += [event for _, event in one_by_one(engine.requests.events.take())]
    *tokens, final = events
    assert isinstance(final, FinalEvent)
    return [event.token_id if isinstance(event, TokenEvent) else event for event in tokens], final


class Sevens:
    """An executor that draws 7, whatever is asked."""

    def launch(self, plan: IterationPlan) -> Sevens:
        self._num_draws = plan.num_draws
        return self

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        return IterationResult((7,) * self._num_draws)


def test_the_loaded_model_computes_unless_another_stands_in(parts: ModelParts):
    own, _ = ids_of(assemble(parts), "a")
    stood_in, _ = ids_of(assemble(parts, Sevens()), "a")
    assert len(own) == 4
    assert own != [7] * 4
    assert stood_in == [7] * 4


@pytest.mark.parametrize(("caches", "num_cached"), [(True, 32), (False, 0)])
def test_prompts_that_begin_alike_share_blocks_if_that_is_on(parts: ModelParts, caches: bool, num_cached: int):
    engine = assemble(parts, enable_prefix_caching=caches)
    first, _ = ids_of(engine, "a")
    second, final = ids_of(engine, "b")
    assert second == first
    assert final.stats.num_cached_tokens == num_cached


def test_the_blocks_are_the_loaded_models(parts: ModelParts):
    snapshot = assemble(parts).snapshot()
    assert (snapshot.total_blocks, snapshot.block_size) == (parts.loaded.num_blocks, 16)


def test_the_tokens_and_logprobs_are_the_same_with_drafts_and_without(parts: ModelParts):
    """Greedy and seeded, beside each other and with prompts in chunks, with overlap and without. Few tokens may be
    drawn, so that they come again and again, in any order."""
    few, again = tuple(range(5, 9)), (7, 8) * 30
    samplings = [
        SamplingParams(30, temperature=0.0),
        SamplingParams(30, seed=7, allowed_token_ids=few[:2], num_logprobs=2),
        SamplingParams(30, seed=5, allowed_token_ids=few, min_tokens=9, stop_token_ids=frozenset({5}), min_p=0.001),
        SamplingParams(20, seed=2, temperature=0.7, repetition_penalty=1.3),
        SamplingParams(12, n=2, seed=3, allowed_token_ids=few),
    ]

    def told(**changed: object) -> tuple[dict[str, list[object]], int]:
        engine = assemble(parts, enable_prefix_caching=False, **changed)
        for number, sampling in enumerate(samplings):
            engine.requests.add(Request(f"{number}", again[number:], sampling, arrival_s=0.0))
        events: dict[str, list[object]] = {f"{number}": [] for number in range(len(samplings))}
        num_drafted = 0
        while engine.has_work:
            engine.step()
            for request_id, event in one_by_one(engine.requests.events.take()):
                if isinstance(event, FinalEvent):
                    events[request_id].append((event.outcome, event.stats.num_output_tokens))
                    num_drafted += event.stats.num_drafted
                else:
                    events[request_id].append(event)
        return events, num_drafted

    plain, num_drafted = told()
    assert num_drafted == 0
    for overlap in (False, True):
        drafting, num_drafted = told(speculation="ngram", overlap=overlap)
        assert num_drafted > 0
        assert _without_logprobs(drafting) == _without_logprobs(plain)
        assert _logprobs(drafting) == pytest.approx(_logprobs(plain), abs=1e-4)


def _without_logprobs(events: dict[str, list[object]]) -> dict[str, list[object]]:
    return {
        request_id: [event._replace(logprobs=None) if isinstance(event, TokenEvent) else event for event in of]
        for request_id, of in events.items()
    }


def _logprobs(events: dict[str, list[object]]) -> list[float]:
    told = [event.logprobs for of in events.values() for event in of if isinstance(event, TokenEvent)]
    return [number for entry in told if entry for number in (entry.chosen, *(logprob for _, logprob in entry.top))]


def test_where_every_layer_sees_a_window_a_long_answer_holds_no_more_than_that(parts: ModelParts):
    def most_used(windows: tuple[int | None, ...]) -> int:
        config = replace(parts.loaded.model_config, sliding_windows=windows)
        groups = LayerGroups.of(windows, parts.loaded.max_model_len)
        enough = replace(parts.loaded, model_config=config, layer_groups=groups, num_blocks=60)
        served = replace(parts, loaded=enough)
        engine, blocks = make_engine(Settings(**SMALL), served, new_recorder(), MonotonicClock(), Sevens())
        sampling, used = SamplingParams(max_tokens=100, temperature=0), [0]
        engine.requests.add(Request("a", PROMPT, sampling, arrival_s=0.0))
        while engine.has_work:
            engine.step()
            used.append(blocks.pool.num_used)
        return max(used[20:])

    num_layers = len(parts.loaded.model_config.sliding_windows)
    assert most_used((None,) * num_layers) == 9
    assert most_used((20,) * num_layers) == 3
    alone = most_used((20,) * (num_layers - 1) + (None,))
    assert alone == 9 + 3 * (num_layers - 1), "one layer that sees all needs all, and the others do not"
