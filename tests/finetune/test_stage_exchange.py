"""Two stages of one process, in threads: what they exchange, also on a GPU, whose kernels and sizes differ."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import packed
from service.finetune.trained_model import graph_capture
from service.finetune.training_state import TrainingState
from service.layers.pipeline_stage import WHOLE, PipelineStage, PlannedStage
from tests.finetune.served import completed, lora_training, random_examples, served_model

CHOSEN = Hyperparameters(learning_rate=2e-3, rank=8, num_epochs=1, batch_size=4, max_length=64, micro_batch_tokens=96)
EXAMPLES = random_examples(12, vocab_size=400, longest=60)
ROWS = 40
PATIENCE_S = 60.0
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class ThreadStage(PlannedStage):
    """lines: to each direction, and what the last stage is told."""

    def __init__(self, index: int, lines: Mapping[str, queue.Queue[Tensor]]) -> None:
        super().__init__(2, index)
        self._lines = lines

    def send(self, hidden: Tensor) -> None:
        self._lines["forward"].put(hidden)

    def receive(self, into: Tensor) -> None:
        into.copy_(self._lines["forward"].get(timeout=PATIENCE_S))

    def send_back(self, gradient: Tensor) -> None:
        self._lines["back"].put(gradient)

    def receive_back(self, into: Tensor) -> None:
        into.copy_(self._lines["back"].get(timeout=PATIENCE_S))

    def tell_last(self, values: Tensor) -> None:
        assert values.device.type == "cpu"
        self._lines["told"].put(values.clone())

    def hear(self, index: int, into: Tensor) -> None:
        assert index == 0
        into.copy_(self._lines["told"].get(timeout=PATIENCE_S))


def training_of(folder: Path, device: str, dtype: torch.dtype, stage: PipelineStage = WHOLE) -> LoraTraining:
    model = served_model(folder, dtype, device, stage=stage)
    validation = packed(EXAMPLES[8:], CHOSEN.micro_batch_tokens)
    return lora_training(
        model,
        EXAMPLES[:8],
        CHOSEN,
        validation=validation,
        rows_per_loss_step=ROWS,
        graphs=graph_capture(model, enforce_eager=True),
        tells_news=stage.index == stage.size - 1,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_two_stages_have_the_bits_of_one(model_folders: Mapping[str, Path], device: str, dtype: torch.dtype):
    folder = model_folders["llama"]
    reports, state = completed(training_of(folder, device, dtype))
    lines = {name: queue.Queue[Tensor]() for name in ("forward", "back", "told")}
    first, last = (training_of(folder, device, dtype, ThreadStage(index, lines)) for index in (0, 1))
    with ThreadPoolExecutor(2) as pool:
        of_first, of_last = pool.submit(told, first), pool.submit(told, last)
    assert of_first.result() == ([], None)
    assert of_last.result()[0] == reports
    mine = of_last.result()[1]
    assert isinstance(mine, TrainingState)
    for one, other in zip(mine.tensors, state.tensors, strict=True):
        assert torch.equal(one, other)
    assert all(each.empty() for each in lines.values()), "nothing is under way"


def told(training: LoraTraining) -> tuple[list[object], object]:
    reports, state, waited_s = list[object](), None, 0.0
    while not training.is_over:
        training.advance(training.layer_steps_left)
        waited_s += training.take_waited_s()
        news = training.take_news()
        reports += news.reports
        state = news.state or state
    assert waited_s > 0.0
    return reports, state
