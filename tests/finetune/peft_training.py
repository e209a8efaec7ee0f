"""The same fine-tuning by PEFT, autograd and torch's AdamW, one sequence at a time: the outside oracle."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import AutoModelForCausalLM

from service.finetune.dataset import Example
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.packing import training_order
from service.finetune.training_state import LoraMatrices


class PeftTraining:
    """begin: A and B by site, which it starts with."""

    def __init__(self, folder: Path, hyperparameters: Hyperparameters, begin: Mapping[str, LoraMatrices]) -> None:
        self._hyperparameters = hyperparameters
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        targets = hyperparameters.targets or "all-linear"
        config = LoraConfig(
            r=hyperparameters.rank,
            lora_alpha=hyperparameters.alpha,
            target_modules=targets if isinstance(targets, str) else list(targets),
            lora_dropout=0.0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model: PeftModel = get_peft_model(base, config)
        with torch.no_grad():
            for name, (a, b) in self._matrices().items():
                a.copy_(begin[name].a)
                b.copy_(begin[name].b)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            trained, lr=hyperparameters.learning_rate, weight_decay=hyperparameters.weight_decay
        )

    def run(self, examples: Sequence[Example]) -> tuple[list[float], list[float]]:
        """Loss and gradient's norm of each step."""
        losses, norms = [], []
        chosen = self._hyperparameters
        num_steps = chosen.num_steps(len(examples))
        for epoch in range(chosen.num_epochs):
            order = training_order(chosen.seed, epoch, len(examples)).tolist()
            for first in range(0, len(order), chosen.batch_size):
                batch = [examples[at] for at in order[first : first + chosen.batch_size]]
                losses.append(self.backward(batch))
                for group in self._optimizer.param_groups:
                    group["lr"] = chosen.learning_rate_at(len(losses), num_steps)
                norms.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), chosen.max_gradient_norm)))
                self._optimizer.step()
        return losses, norms

    def backward(self, batch: Sequence[Example]) -> float:
        """The loss; leaves its gradients."""
        num_trained = sum(int(example.is_trained.sum()) for example in batch)
        self._optimizer.zero_grad()
        total = 0.0
        for example in batch:
            logits, targets = self._predicted(example)
            loss = F.cross_entropy(logits, targets, reduction="sum") / num_trained
            loss.backward()
            total += loss.item()
        return total

    @torch.no_grad()
    def evaluate(self, examples: Sequence[Example]) -> tuple[float, float]:
        """Mean loss, and share of greedy choices that are right, over all trained tokens."""
        predictions = [self._predicted(example) for example in examples]
        logits, targets = (torch.cat(each) for each in zip(*predictions, strict=True))
        return F.cross_entropy(logits, targets).item(), (logits.argmax(-1) == targets).double().mean().item()

    def gradients(self) -> dict[str, LoraMatrices]:
        matrices = self._matrices()
        return {name: LoraMatrices(*(m.grad for m in pair if m.grad is not None)) for name, pair in matrices.items()}

    def matrices(self) -> dict[str, LoraMatrices]:
        return {name: LoraMatrices(a.detach(), b.detach()) for name, (a, b) in self._matrices().items()}

    def _predicted(self, example: Example) -> tuple[Tensor, Tensor]:
        """Logits and targets of the trained tokens."""
        ids, is_trained = torch.from_numpy(example.token_ids).long(), torch.from_numpy(example.is_trained)
        logits = self.model(ids[None]).logits[0, :-1][is_trained[1:]]
        return logits.float(), ids[is_trained]

    def _matrices(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {
            name.removeprefix("base_model.model."): (module.lora_A["default"].weight, module.lora_B["default"].weight)
            for name, module in self.model.named_modules()
            if isinstance(module, LoraLayer)
        }
