from __future__ import annotations

from dataclasses import dataclass

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.core.sequence import Sequence
from service.core.stats import IterationStats
from service.engine.step_record import Launched, ProcessedTokens, StepRecord
from service.prediction.execution_time import ExecutionTime
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.preemption import AlwaysRecompute
from tests.engine.harness import Harness, ListSink
from tests.manual_clock import ManualClock


class NotedLedger:
    """Records what it is told; always predicts two seconds."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[ExecutionTime] = []
        self._fails = fails

    def executed(self, plan: IterationPlan, took: ExecutionTime) -> None:
        if self._fails:
            raise RuntimeError("broken")
        self.told.append(took)

    def iteration_s(self, plan: IterationPlan) -> float | None:
        if self._fails:
            raise RuntimeError("broken")
        return 2.0


@dataclass
class Pending:
    done: bool = False

    def is_done(self) -> bool:
        return self.done

    def wait(self) -> IterationResult:
        return IterationResult(())


class Play:
    """A record, and a clock that advances between its calls."""

    def __init__(self, *, fails: bool = False) -> None:
        self.clock, self.sink, self.ledger = ManualClock(), ListSink(), NotedLedger(fails=fails)
        self.record = StepRecord(self.ledger, self.sink, self.clock, self.ledger.iteration_s)

    def launch(self, decide_s: float, launch_s: float) -> Launched:
        started_s = self.record.launches(has_arrivals=False)
        self.clock.advance(decide_s)
        scheduled_s = self.clock.now_s()
        self.clock.advance(launch_s)
        return self.record.launched(IterationPlan(()), Pending(), DecisionTally(), started_s, scheduled_s)

    def complete(self, launched: Launched, wait_s: float, *, was_done: bool, is_last: bool) -> IterationStats:
        started_s, result = self.clock.now_s(), IterationResult((), is_replayed=True)
        self.clock.advance(wait_s)
        executed = self.record.executed(launched, result, started_s, was_done=was_done, is_last=is_last)
        self.clock.advance(0.5)
        self.record.applied(launched, result, executed, ProcessedTokens(0.0))
        return self.sink.iterations[-1]


def test_each_second_of_a_step_is_counted_once():
    play = Play()
    stats = play.complete(play.launch(1.0, 2.0), 4.0, was_done=False, is_last=True)
    assert (stats.schedule_s, stats.launch_s, stats.wait_s, stats.device_s, stats.apply_s) == (1.0, 2.0, 4.0, 6.0, 0.5)
    assert stats.is_replayed


def test_an_iteration_has_the_device_from_when_the_one_before_has_left_it():
    play = Play()
    first, second = play.launch(1.0, 1.0), play.launch(1.0, 1.0)
    assert play.complete(first, 3.0, was_done=False, is_last=False).device_s == 6.0
    assert play.complete(second, 2.0, was_done=False, is_last=True).device_s == pytest.approx(2.5)
    assert [took.is_exact for took in play.ledger.told] == [True, True]


def test_an_end_that_nobody_saw_is_not_exact():
    play = Play()
    play.complete(play.launch(1.0, 1.0), 3.0, was_done=True, is_last=False)
    play.complete(play.launch(1.0, 1.0), 0.0, was_done=False, is_last=False)
    assert [took.is_exact for took in play.ledger.told] == [False, False]


def test_a_launch_is_delayed_by_the_prediction_and_not_behind_an_end():
    play = Play()
    running = play.launch(0.0, 0.0)
    assert 1.0 < play.record.spare_s(running, has_arrivals=False) < 2.0
    assert isinstance(running.pending, Pending)
    running.pending.done = True
    assert play.record.spare_s(running, has_arrivals=False) == 0.0


def test_a_measurement_that_fails_costs_itself_alone(caplog):
    play = Play(fails=True)
    launched = play.launch(0.0, 1.0)
    assert play.record.spare_s(launched, has_arrivals=False) == 0.0
    assert play.complete(launched, 1.0, was_done=False, is_last=True).device_s == 2.0
    assert "measurements of iterations were lost" in caplog.text


def test_a_lost_iteration_says_nothing_of_the_next():
    harness = Harness()
    record = StepRecord(harness.scheduler.ledger, harness.sink, harness.clock, harness.scheduler.predicted_s)
    record.launches(has_arrivals=False)
    record.lost()
    assert not harness.sink.iterations


def test_tokens_count_as_what_they_were():
    sequence = Sequence(0, 0, 0, list(range(10)), num_prompt_tokens=10, max_num_tokens=20)
    tokens = ProcessedTokens(1.0)
    tokens.add(sequence, 0, 6, num_drawn=0)
    tokens.add(sequence, 6, 10, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed, tokens.generated) == (10, 0, 1)


def test_what_a_preemption_threw_away_is_recomputed_and_no_prompt():
    """Preempted after 8 of 10 prompt tokens: these are recomputed in two chunks, the second with the prompt's rest."""
    sequence = Sequence(0, 0, 0, list(range(10)), num_prompt_tokens=10, max_num_tokens=20)
    sequence.recompute_until = 8
    tokens = ProcessedTokens(1.0)
    tokens.add(sequence, 0, 5, num_drawn=0)
    assert (tokens.prompt, tokens.recomputed) == (0, 5)
    tokens.add(sequence, 5, 10, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed) == (2, 8)


def test_a_decode_is_neither():
    sequence = Sequence(0, 0, 0, list(range(11)), num_prompt_tokens=10, max_num_tokens=20)
    tokens = ProcessedTokens(1.0)
    tokens.add(sequence, 10, 11, num_drawn=1)
    assert (tokens.prompt, tokens.recomputed, tokens.generated) == (0, 0, 1)


def gaps_of(harness: Harness) -> list[tuple[float, int]]:
    return [gap for iteration in harness.sink.iterations for gap in iteration.token_gaps]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_gaps_of_a_request_fill_the_time_from_its_first_token_to_its_last(overlap: bool):
    """However it is batched, chunked and preempted: one gap per token but the first."""
    harness = Harness(num_blocks=14, preemption=AlwaysRecompute(), overlap=overlap)
    requests = [harness.request(tuple(range(10 * i, 10 * i + 3 + 5 * i)), 12, seed=i) for i in range(4)]
    for request in requests:
        assert harness.add(request)
        harness.step()
    harness.run()
    ended = [stats for stats, _, _ in harness.sink.requests]
    assert any(stats.num_preemptions for stats in ended), "the scene is to have gaps of all sizes"
    assert sum(count for _, count in gaps_of(harness)) == sum(stats.num_output_tokens - 1 for stats in ended)
    decoding_s = sum(stats.finished_s - stats.first_token_s for stats in ended if stats.first_token_s is not None)
    assert sum(seconds * count for seconds, count in gaps_of(harness)) == pytest.approx(decoding_s)


def test_sequences_side_by_side_are_one_entry():
    harness = Harness(max_num_batched_tokens=64)
    for _ in range(6):
        harness.add(harness.request((1, 2), 5))
    harness.run()
    assert [iteration.token_gaps for iteration in harness.sink.iterations] == [
        (),
        *[((pytest.approx(0.01), 6),)] * 4,
    ]


def test_choices_of_one_request_come_side_by_side():
    harness = Harness()
    harness.add(harness.request((1, 2), 4, n=3))
    harness.run()
    assert gaps_of(harness) == [(pytest.approx(0.01), 1)] * 3
