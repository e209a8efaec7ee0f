from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_training import LoraTraining
from service.finetune.training_threads import is_one_threads_work, threads_for
from tests.finetune.served import completed, lora_training, random_examples, served_model

CPU = torch.device("cpu")
SMALL, LARGE = (512, 256), (512, 576)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_work_has_one_thread_while_it_lasts() -> None:
    assert is_one_threads_work(*SMALL) and not is_one_threads_work(*LARGE)
    with threads_for(*SMALL, CPU):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ArithmeticError), threads_for(*SMALL, CPU):
        raise ArithmeticError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("size", "device"), [(LARGE, CPU), (SMALL, torch.device("cuda"))])
def test_other_work_has_all(size: tuple[int, int], device: torch.device) -> None:
    with threads_for(*size, device):
        assert torch.get_num_threads() == 2


def test_a_training_of_a_small_model_computes_on_one(
    model_folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what serves beside it, on all."""
    seen, layer_steps = set(), LoraTraining._layer_steps

    def watched(training: LoraTraining) -> Iterator[None]:
        for each in layer_steps(training):
            seen.add(torch.get_num_threads())
            yield each

    monkeypatch.setattr(LoraTraining, "_layer_steps", watched)
    chosen = Hyperparameters(
        learning_rate=1e-3, rank=2, alpha=4, num_epochs=1, batch_size=2, max_length=64, micro_batch_tokens=64
    )
    completed(lora_training(served_model(model_folders["llama"]), random_examples(4, 400, 30), chosen))
    assert seen == {1}
    assert torch.get_num_threads() == 2
