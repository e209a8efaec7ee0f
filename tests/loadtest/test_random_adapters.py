from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loadtest.dummy_model import dummy_llama
from loadtest.model_shapes import LLAMA_135M, QWEN3_06B, read_shape, shape_folder
from loadtest.random_adapters import ALL_LINEARS, linear_sizes, main, make_adapters
from tests.loadtest.tiny_llama import LLAMA_TINY

transformers = pytest.importorskip("transformers")
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("name", [QWEN3_06B, LLAMA_135M])
def test_sizes_are_those_of_the_models_linears(name: str) -> None:
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(shape_folder(name))
        layer = transformers.AutoModelForCausalLM.from_config(config).model.layers[0]
    linears = {
        name.rpartition(".")[2]: tuple(module.weight.shape)
        for name, module in layer.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    assert linear_sizes(read_shape(name)) == linears


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")  # what peft asks of it
def test_peft_loads_them_and_they_change_answers(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model_folder = dummy_llama(LLAMA_TINY, tmp_path)
    assert main([str(model_folder), str(tmp_path / "out"), "--count", "2", "--rank", "3", "--dtype", "float32"]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        answers = [model(ids).logits]
        for number in range(2):
            adapted = peft.PeftModel.from_pretrained(model, tmp_path / "out" / f"adapter-{number}")
            loaded = peft.get_peft_model_state_dict(adapted)
            given = load_file(tmp_path / "out" / f"adapter-{number}" / "adapter_model.safetensors")
            assert loaded.keys() == given.keys()
            assert all(torch.equal(loaded[name], given[name]) for name in given)
            answers.append(adapted(ids).logits)
            model = adapted.unload()
    assert answers[0].isfinite().all()
    for number, other in ((1, 0), (2, 0), (2, 1)):
        assert 0.01 < (answers[number] - answers[other]).norm() / answers[0].norm() < 2


def test_the_same_seed_and_number_give_the_same_weights(tmp_path: Path) -> None:
    first, second = make_adapters(TINY, tmp_path / "a", 2, 4), make_adapters(TINY, tmp_path / "b", 3, 4)
    weights = [(folder / "adapter_model.safetensors").read_bytes() for folder in first + second]
    assert weights[:2] == weights[2:4]
    assert len(set(weights)) == 3


def test_only_the_named_modules_have_some(tmp_path: Path) -> None:
    (folder,) = make_adapters(TINY, tmp_path, 1, 4, ["q_proj", "down_proj"], "float16")
    tensors = load_file(folder / "adapter_model.safetensors")
    assert {name.split(".")[6] for name in tensors} == {"q_proj", "down_proj"}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == 4 and config["target_modules"] == ["q_proj", "down_proj"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target-modules", "q_proj", "lm_head"], "not lm_head"),
        (["--rank", "0"], "not 0 and 1"),
        (["--count", "-1"], "not 16 and -1"),
    ],
)
def test_wrong_calls_are_told(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["llama-135m", str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-shape", str(tmp_path)]) == 2
    assert "no-such-shape" in capsys.readouterr().err


def test_all_linears_are_the_default() -> None:
    assert set(linear_sizes(TINY)) == set(ALL_LINEARS)
