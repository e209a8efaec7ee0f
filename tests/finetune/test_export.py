from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from service.finetune.export import export_adapter
from service.finetune.training_state import ParameterLayout, TrainingState
from service.lora.adapter_folder import read_adapter
from tests.lora.peft_adapters import base_model, sites_of

RANK, ALPHA = 3, 6.0


def state_of(family: str, *targets: str) -> TrainingState:
    """With random A and B, for these kinds of modules, or for all."""
    sites = {
        name: site
        for name, site in sites_of(base_model(family)).items()
        if not targets or name.rpartition(".")[2] in targets
    }
    layout = ParameterLayout(sites, RANK)
    generator = torch.Generator().manual_seed(5)
    parameters = 0.3 * torch.randn(layout.num_parameters, generator=generator)
    return TrainingState(layout, parameters, parameters.clone(), parameters.clone(), 7, 5, 100)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_peft_computes_with_it_what_was_trained(tmp_path: Path, family: str, targets: tuple[str, ...]):
    state = state_of(family, *targets)
    export_adapter(tmp_path, state, ALPHA, "base")
    merged, prompt = base_model(family), torch.tensor([[5, 6, 7, 8]])
    for name, (a, b) in state.matrices().items():
        merged.get_submodule(name).weight.data += ALPHA / RANK * (b @ a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # not of keys that PEFT misses or does not know
        adapted = PeftModel.from_pretrained(base_model(family), tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(adapted(prompt).logits, merged(prompt).logits, rtol=1e-4, atol=1e-4)
        told = [
            model.generate(prompt, max_new_tokens=12, do_sample=False, min_new_tokens=12) for model in (adapted, merged)
        ]
    assert told[0].tolist() == told[1].tolist()
    assert not torch.allclose(base_model(family)(prompt).logits, merged(prompt).logits, atol=0.01)


def test_this_server_reads_what_was_trained(tmp_path: Path):
    state = state_of("llama")
    export_adapter(tmp_path, state, ALPHA, "base")
    read = read_adapter(tmp_path, state.layout.sites, RANK, torch.float32)
    assert read.sites.keys() == state.layout.sites.keys()
    for name, (a, b) in state.matrices().items():
        assert torch.equal(read.sites[name].a, a)
        assert torch.equal(read.sites[name].b, b)
        assert math.isclose(read.sites[name].scale, ALPHA / RANK)


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        export_adapter(tmp_path, state_of("llama", "q_proj"), ALPHA, "base")
