import math
from pathlib import Path

import pytest

from loadtest.baselines.modelled_training import TOKENS_PER_ITERATION
from loadtest.scenarios.real_training import new_training
from tests.finetune.served import served_model
from tests.models.checkpoints import llama


def test_each_iteration_is_a_step_over_a_full_micro_batch(tmp_path: Path) -> None:
    model = served_model(llama(tmp_path, max_position_embeddings=TOKENS_PER_ITERATION))
    vocab_size = model.embedding.weight.shape[0]
    training, other = (new_training(model, num_iterations, vocab_size) for num_iterations in (10_000_000, 1))
    assert training.training_id != other.training_id
    for each in (training, other):
        each.advance(each.layer_steps_per_iteration)
    (report,) = other.take_news().reports
    assert report.num_trained_tokens == TOKENS_PER_ITERATION - 1
    assert report.loss == pytest.approx(math.log(vocab_size), abs=2)
    other.take_news()
    assert (other.is_over, training.is_over) == (True, False)
