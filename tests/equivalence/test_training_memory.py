"""Requests and a training share a small KV cache, and both compute what they compute alone.

Bit for bit, in fp32 on the CPU: the training's activations are in KV blocks. Requests are moved out of these, and take
them back.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from service.core.iteration import IterationPlan
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_training import LoraTraining
from service.finetune.training_state import TrainingState
from service.models.causal_lm import CausalLM
from service.models.model_config import load_model_config
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.model_runner import ModelRunner
from service.scheduler import arena_lending
from service.scheduler.preemption import AlwaysSwap
from tests.engine.harness import Harness
from tests.engine.toy_training import ToyListener
from tests.equivalence.hf_model import save_random_model
from tests.finetune.served import completed, lora_training, random_examples, served_model

BLOCK_SIZE = 4
CHOSEN = Hyperparameters(
    learning_rate=2e-3, rank=4, alpha=8, num_epochs=3, batch_size=3, max_length=20, micro_batch_tokens=24
)
EXAMPLES = random_examples(8, vocab_size=400, longest=20)
CPU = torch.device("cpu")
Answers = dict[str, list[int]]


class RandomSlack:
    """A training policy: requests never wait for the training; it gets a random slack between iterations."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def admits(self, waited_s: float, step_s: float) -> bool:
        return True

    def slack_s(self, plan: IterationPlan) -> float:
        return self._chance.choice([0.0, 1e-3, 1.0])


class Model:
    def __init__(self, folder: Path) -> None:
        self.folder = save_random_model("llama", folder)
        self.model: CausalLM = served_model(self.folder)
        self.config = load_model_config(self.folder)
        self.layout = KvLayout.of(self.config, BLOCK_SIZE, torch.float32)
        self.trained = completed(self.training())[1]

    def training(self) -> LoraTraining:
        return lora_training(self.model, EXAMPLES, CHOSEN)

    def num_blocks(self) -> int:
        """Blocks that a micro-batch needs."""
        return self.layout.num_blocks_to_lend(self.training().num_arena_bytes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("llama"))


def play(model: Model, seed: int, num_blocks: int, training: LoraTraining | None, overlap: bool) -> tuple[Answers, int]:
    """Answers to requests with random arrivals, and how often requests took the training's memory back."""
    chance = random.Random(seed)
    storage = KvStorage(model.layout, num_blocks, CPU)
    runner = ModelRunner(model.model, storage, CPU, 8, model.config.max_position_embeddings, model.config.vocab_size)
    harness = Harness(
        num_blocks,
        BLOCK_SIZE,
        max_num_batched_tokens=32,
        executor=runner,
        preemption=AlwaysSwap(),
        overlap=overlap,
        training=RandomSlack(random.Random(seed)),
        trainings=runner.trainings,
    )
    listener = ToyListener()
    if training is not None:
        harness.engine.training.start(training, listener)
    for number in range(12):
        prompt = tuple(chance.choices(range(3, 400), k=chance.randint(1, 2 * num_blocks)))
        sampling = {"n": chance.choice([1, 1, 2]), "temperature": chance.choice([0.0, 1.0])}
        harness.add(harness.request(prompt, chance.randint(1, 16), seed=number, **sampling))
        for _ in range(chance.choice([1, 2, 20])):
            harness.step()
    harness.run()
    assert listener.ends == ([] if training is None else [None])
    answers = {f"{name} {choice}": ids for (name, choice), ids in harness.tokens.items()}
    return answers, harness.blocks.arena.num_given_back


def same_bits(one: TrainingState, other: TrainingState) -> bool:
    pairs = ((getattr(state, name) for state in (one, other)) for name in ("parameters", "first_moments"))
    return all(torch.equal(*pair) for pair in pairs) and one.step == other.step


@pytest.mark.parametrize(
    ("seed", "room", "overlap"), [(0, 2.2, False), (1, 1.0, True), (2, 2.2, True), (3, 1.6, False)]
)
def test_each_computes_what_it_computes_alone(model: Model, seed: int, room: float, overlap: bool, monkeypatch):
    """room: blocks in the cache, as a multiple of those that a micro-batch needs."""
    monkeypatch.setattr(arena_lending, "FIRST_PAUSE_S", 0.05)
    num_blocks = int(room * model.num_blocks())
    training = model.training()
    answers, num_given_back = play(model, seed, num_blocks, training, overlap)
    assert num_given_back > 0
    assert same_bits(training.state(), model.trained)
    assert answers == play(model, seed, num_blocks, None, overlap)[0]
