"""fp32 on the CPU, bit for bit: requests get the same answers with and without a training, and a training ends in the
same state with and without requests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from service.config import LoraConfig
from service.core.clock import MonotonicClock
from service.core.request import Request
from service.core.token_logprobs import TokenLogprobs
from service.core.training import StepReport
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_training import LoraTraining
from service.finetune.training_state import TrainingState
from service.runner.load import LoadedModel
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.interleaved_training import InterleavedTraining
from tests.engine.harness import Harness
from tests.engine.scripted_training import NotingListener
from tests.equivalence.hf_model import save_random_model
from tests.finetune.served import completed, lora_training, random_examples
from tests.runner.loading import load
from tests.scheduler.test_interleaved_training import KnownTime

CHOSEN = Hyperparameters(
    learning_rate=2e-3, rank=4, alpha=8, num_epochs=6, batch_size=3, max_length=64, micro_batch_tokens=64
)
EXAMPLES = random_examples(9, vocab_size=400, longest=60)
POLICIES: dict[str, TrainingPolicy] = {
    "inference first": DeferredBatching(0.0),
    "deferred": DeferredBatching(0.02),
    "interleaved": InterleavedTraining(KnownTime(0.0), 0.1),
}
NUM_REQUESTS, BURST = 12, 3

Answers = dict[str, tuple[list[int], list[TokenLogprobs]]]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_random_model(request.param, tmp_path_factory.mktemp(request.param))
    return load(Path(folder), block_size=4, max_num_seqs=8, lora=LoraConfig(num_slots=1, max_rank=8, trains=True))


def new_training(loaded: LoadedModel) -> LoraTraining:
    return lora_training(loaded.model, EXAMPLES, CHOSEN)


class Served(NamedTuple):
    """num_beside: layer-step pieces of the training run while requests ran. num_between: run while others were still to
    come."""

    answers: Answers
    listener: NotingListener
    num_beside: int
    num_between: int


def serve(loaded: LoadedModel, policy: TrainingPolicy, training: LoraTraining | None) -> Served:
    """Serve requests, and run the training to its end. Several requests start at once when all earlier ones have ended,
    so that batches are the same each time: on a CPU the batch can change bits."""
    listener, chance, num_beside, num_between = NotingListener(), random.Random(7), 0, 0
    harness = Harness(
        240,
        executor=loaded.runner,
        trainings=loaded.runner.trainings,
        training=policy,
        clock=MonotonicClock(),
        max_num_batched_tokens=32,
    )
    engine = harness.engine
    if training is not None:
        engine.training.start(training, listener)
    while engine.has_work or len(harness.requests) < NUM_REQUESTS:
        if not engine.has_requests and len(harness.requests) < NUM_REQUESTS:
            for _ in range(chance.randint(0, 8) if engine.has_work else 0):
                engine.step()
            num_between = len(harness.sink.trainings)
            for _ in range(BURST):
                harness.add(some_request(harness, random.Random(len(harness.requests))))
        is_serving, num_before = bool(harness.scheduler.pool.running), len(harness.sink.trainings)
        engine.step()
        harness.collect()
        num_beside += is_serving and len(harness.sink.trainings) > num_before
    answers = {name: (tokens, harness.logprobs[name, choice]) for (name, choice), tokens in harness.tokens.items()}
    return Served(answers, listener, num_beside, num_between)


def some_request(harness: Harness, chance: random.Random) -> Request:
    prompt = tuple(chance.randint(3, 399) for _ in range(chance.randint(1, 30)))
    num_tokens, temperature = chance.randint(1, 12), chance.choice([0.0, 1.0])
    return harness.request(prompt, num_tokens, seed=chance.randint(0, 99), temperature=temperature, num_logprobs=3)


def assert_same(listener: NotingListener, expected: tuple[list[StepReport], TrainingState]) -> None:
    state = listener.snapshots[-1]
    assert listener.reports == expected[0]
    assert isinstance(state, TrainingState)
    for name in ("parameters", "first_moments", "second_moments"):
        assert torch.equal(getattr(state, name), getattr(expected[1], name))


@pytest.mark.parametrize("policy", POLICIES)
def test_neither_changes_a_bit_of_the_other(loaded: LoadedModel, policy: str):
    alone = serve(loaded, POLICIES[policy], None)
    beside = serve(loaded, POLICIES[policy], new_training(loaded))
    assert (beside.num_beside > 0, beside.num_between > 3) == (policy == "interleaved", True), "they did meet"
    assert len(beside.answers) == NUM_REQUESTS
    assert beside.answers == alone.answers
    assert beside.listener.ends == [None]
    assert_same(beside.listener, completed(new_training(loaded)))
