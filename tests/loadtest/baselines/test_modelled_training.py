from loadtest.baselines.modelled_training import (
    STEP_S,
    TOKENS_PER_ITERATION,
    TOKENS_PER_S,
    ModelledTime,
    ModelledTraining,
    ModelledTrainings,
)
from service.core.training import TrainingShare


def test_training_alone_has_the_rate_that_is_said():
    time = ModelledTime()
    trainings = ModelledTrainings(time)
    trainings.add_training(ModelledTraining(time, 10))
    outcome = trainings.advance(TrainingShare(1, 10 * len(STEP_S)))
    assert (outcome.num_layer_steps, outcome.is_over, outcome.layer_steps_left) == (10 * len(STEP_S), True, 0)
    assert abs(10 * TOKENS_PER_ITERATION / time.seconds / TOKENS_PER_S - 1) < 1e-9
    assert [report.step for report in outcome.news.reports] == list(range(1, 11))


def test_it_stops_between_two_layer_steps():
    time = ModelledTime()
    trainings = ModelledTrainings(time)
    trainings.add_training(ModelledTraining(time, 2))
    outcome = trainings.advance(TrainingShare(1, 5))
    assert (outcome.num_layer_steps, outcome.layer_steps_left) == (5, len(STEP_S) - 5)
    assert abs(outcome.seconds - sum(STEP_S[:5])) < 1e-12
    trainings.remove_training(1)
    assert trainings.advance(TrainingShare(1, 5)).num_layer_steps == 0
