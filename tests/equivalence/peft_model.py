"""Random adapters of random small models in PEFT's own format, and PEFT's `generate` as the oracle for each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.lora.peft_adapters import sites_of, wrapped
from tests.models.checkpoints import generate_each

MAX_RANK = 8
BASE = ""
"""Stands for no adapter."""


def save_adapters(model_folder: Path, folder: Path) -> dict[str, Path]:
    """Three adapters, by name: of all modules with rank 3; of half of them, rank-stabilized, with the highest rank; of
    one kind of module, with a different rank in each layer."""
    modules = sites_of(AutoModelForCausalLM.from_pretrained(model_folder))
    kinds = sorted({name.rpartition(".")[2] for name in modules if ".0." in name})
    options: dict[str, dict[str, Any]] = {
        "everywhere": {"r": 3, "lora_alpha": 3, "target_modules": kinds},
        "some": {"r": MAX_RANK, "lora_alpha": 2, "use_rslora": True, "target_modules": kinds[::2]},
        "layers": {"r": 2, "lora_alpha": 3, "target_modules": kinds[-1:], "rank_pattern": {r".*\.1\..*": 5}},
    }
    for seed, (name, chosen) in enumerate(options.items()):
        base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        wrapped(base, seed, **chosen).save_pretrained(folder / name, save_embedding_layers=False)
    return {name: folder / name for name in options}


class PeftOracle:
    """The base model with all adapters loaded, one active at a time."""

    def __init__(self, model_folder: Path, adapters: Mapping[str, Path]) -> None:
        base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
        base.generation_config.eos_token_id = None
        (first, folder), *others = adapters.items()
        with warnings.catch_warnings():  # PEFT asks transformers for an attribute by its former name
            warnings.simplefilter("ignore")
            self._model = PeftModel.from_pretrained(base, folder, adapter_name=first)
            for name, folder in others:
                self._model.load_adapter(folder, adapter_name=name)
        self._model.eval()

    def generate(self, adapter: str, prompt: tuple[int, ...], max_tokens: int, **options: Any) -> list[list[int]]:
        """The tokens after the prompt, one list per returned sequence. Greedy unless options say otherwise."""
        ids = torch.tensor([prompt])
        chosen = {"max_new_tokens": max_tokens, "do_sample": False, "pad_token_id": 0, **options}
        if adapter != BASE:
            self._model.set_adapter(adapter)
            made = self._model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **chosen)
        else:
            with self._model.disable_adapter():
                made = self._model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **chosen)
        return [tokens[len(prompt) :] for tokens in made.tolist()]

    def generate_each(self, asked: Sequence[tuple[str, tuple[int, ...]]], max_tokens: int) -> list[list[int]]:
        """Greedy tokens for each (adapter, prompt); an adapter's prompts are computed together."""
        made: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for name in {adapter for adapter, _ in asked}:
            prompts = [prompt for adapter, prompt in asked if adapter == name]
            if name != BASE:
                self._model.set_adapter(name)
            with self._model.disable_adapter() if name == BASE else nullcontext():
                each = generate_each(self._model, prompts, max_tokens)
            made.update(zip([(name, prompt) for prompt in prompts], each, strict=True))
        return [made[each] for each in asked]
