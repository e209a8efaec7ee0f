"""Adapters of random tiny models, made and saved by PEFT: the outside oracle."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from service.lora.adapter_folder import AdapterSite
from tests.equivalence.hf_model import CONFIGS


def base_model(family: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[family]).eval()


def sites_of(model: PreTrainedModel) -> dict[str, AdapterSite]:
    """All linear modules but the head, by their names in the checkpoint."""
    return {
        name: _site(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name != "lm_head"
    }


def _site(module: nn.Module) -> AdapterSite:
    out_features, in_features = module.weight.shape if isinstance(module, nn.Linear) else module.weight.T.shape
    return AdapterSite(in_features, out_features)


def wrapped(model: PreTrainedModel, seed: int = 0, **options: Any) -> PeftModel:
    """The model with one adapter of random A and B."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():  # of what PEFT asks transformers for, and of options that go together ill
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(**options))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return adapted


def matrices_of(adapted: PeftModel) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
    """A, B and scale as PEFT computes with them, by the module's name in the model that it wraps."""
    return {
        name.removeprefix("base_model.model."): (
            module.lora_A["default"].weight.detach(),
            module.lora_B["default"].weight.detach(),
            module.scaling["default"],
        )
        for name, module in adapted.named_modules()
        if isinstance(module, LoraLayer)
    }


def random_options(modules: list[str], seed: int) -> dict[str, Any]:
    """Options of LoraConfig for some of the modules, with patterns of several kinds."""
    chance = random.Random(seed)
    names = sorted({module.rpartition(".")[2] for module in modules})
    some = chance.sample(names, chance.randint(1, len(names)))
    patterns = [*some, chance.choice(modules), f"^{chance.choice(modules)}", r"layers\.0\..*", r"\w+\.1\..*(up|fc|k).*"]
    return {
        "target_modules": chance.choice([some, "all-linear", rf".*\.({'|'.join(some)})", chance.sample(modules, 3)]),
        "r": chance.randint(1, 8),
        "lora_alpha": chance.choice([1, 16, 5]),
        "use_rslora": chance.random() < 0.5,
        # Sorted, as they are saved: the first that matches decides.
        "rank_pattern": {p: chance.randint(1, 8) for p in sorted(chance.sample(patterns, 2))},
        "alpha_pattern": {p: chance.choice([1, 3.5, 32]) for p in sorted(chance.sample(patterns, 2))},
    }


def save_small_adapter(folder: Path, seed: int = 0, **options: Any) -> Path:
    """Of the Llama of CONFIGS: rank 4, alpha 8 on queries and downs, unless told otherwise."""
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **options}
    wrapped(base_model("llama"), seed, **chosen).save_pretrained(folder)
    return folder


def with_config(folder: Path, **changes: object) -> Path:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def with_tensors(folder: Path, changes: Mapping[str, torch.Tensor | None]) -> Path:
    """Tensors exchanged, added, or (None) taken away."""
    file = folder / "adapter_model.safetensors"
    tensors = {**load_file(file), **changes}
    # Cloned: what is read is the file itself, which is written anew.
    save_file({name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}, file)
    return folder
