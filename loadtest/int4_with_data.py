"""Converts a plain checkpoint to int4, as loadtest.int4_checkpoint does, with rounding and scales learned from text:

    python -m loadtest.int4_with_data MODEL_FOLDER NEW_FOLDER TEXT... [--steps 500] [--device cuda]

Distillation: the quantized model learns the plain one's next-token distribution (Hinton et al. 2015), all layers at
once. Learned are each element's position between two levels and each group's scale; gradients pass straight through the
rounding (Esser et al. 2020). Use texts of the kind that the model is for, but not those that it is evaluated on. Needs
transformers, and in practice a GPU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loadtest.int4_checkpoint import Rounded, is_linear, round_groups, write_int4

WINDOW = 512


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="convert a plain checkpoint to int4, with data")
    parser.add_argument("model", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--group-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="levels that an element moves by in a step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    text = "\n".join(file.read_text(encoding="utf-8") for file in options.texts)
    token_ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    windows = token_ids[: len(token_ids) // WINDOW * WINDOW].view(-1, WINDOW)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(options.device)
    learned = learn(model, windows, options.group_size, options.steps, options.batch_size, options.learning_rate)
    write_int4(options.model, options.new, options.group_size, learned)


def learn(
    model: Any, windows: Tensor, group_size: int, steps: int, batch_size: int, learning_rate: float
) -> Mapping[str, Rounded]:
    """Returns the quantized linears of a transformers model, by weight name. windows [W, T]: token ids."""
    model.requires_grad_(False)
    weights = {name: weight for name, weight in model.named_parameters() if is_linear(name)}
    groups = LearnedGroups(weights, group_size)
    factors = {"params": [groups.factors], "lr": learning_rate / 10}
    optimizer = torch.optim.Adam([{"params": [groups.places], "lr": learning_rate}, factors], betas=(0.9, 0.95))
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    order = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = windows[torch.randint(len(windows), (batch_size,), generator=order)].to(model.device)
        with torch.no_grad():
            wanted = model(batch, use_cache=False).logits.flatten(0, 1).float().log_softmax(1)
        got = torch.func.functional_call(model, groups.weights(), (batch,), {"use_cache": False}).logits
        got = got.flatten(0, 1).float().log_softmax(1)
        loss = torch.nn.functional.kl_div(got, wanted, reduction="batchmean", log_target=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        decay.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.4f} nats", flush=True)
    return groups.rounded()


class LearnedGroups:
    """The groups of all weights concatenated, so that rounding the whole model takes few operations.

    places: the elements' positions, in units of the initial scale, from the zero point. factors: scale / initial scale.
    """

    def __init__(self, weights: Mapping[str, Tensor], group_size: int) -> None:
        self._shapes = {name: weight.shape for name, weight in weights.items()}
        self._group_size = group_size
        first = [round_groups(weight.float(), group_size) for weight in weights.values()]
        self._zeros = torch.cat([zeros.reshape(-1, 1) for _, zeros, _ in first]).float()
        self._scales = torch.cat([scales.reshape(-1, 1) for _, _, scales in first])
        plain = torch.cat([weight.reshape(-1, group_size) for weight in weights.values()]).float()
        self.places = (plain / self._scales).requires_grad_()
        self.factors = torch.ones_like(self._scales, requires_grad=True)

    def weights(self) -> dict[str, Tensor]:
        """The dequantized weights by name, bf16. Gradients pass through the rounding."""
        scales = self._stored_scales()
        elements = _rounded(self.places / self.factors) + self._zeros
        values = ((elements.clamp(0, 15) - self._zeros) * scales).bfloat16()
        return {name: part.view(self._shapes[name]) for name, part in self._by_name(values).items()}

    def rounded(self) -> dict[str, Rounded]:
        with torch.no_grad():
            elements = ((self.places / self.factors).round() + self._zeros).clamp(0, 15).long().cpu()
            zeros, scales = self._zeros.long().cpu(), self._stored_scales().cpu()
        found: dict[str, Rounded] = {}
        parts = zip(*(self._by_name(each).values() for each in (elements, zeros, scales)), strict=True)
        for (name, shape), (own_elements, own_zeros, own_scales) in zip(self._shapes.items(), parts, strict=True):
            rows = shape[0]
            found[name] = own_elements.view(rows, -1), own_zeros.view(rows, -1), own_scales.view(rows, -1)
        return found

    def _stored_scales(self) -> Tensor:
        scales = self._scales * self.factors
        return scales + (scales.bfloat16().float() - scales).detach()

    def _by_name(self, groups: Tensor) -> dict[str, Tensor]:
        counts = [shape.numel() // self._group_size for shape in self._shapes.values()]
        return dict(zip(self._shapes, groups.split(counts), strict=True))


def _rounded(values: Tensor) -> Tensor:
    return values + (values.round() - values).detach()


if __name__ == "__main__":
    main()
