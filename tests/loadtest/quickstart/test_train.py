from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from loadtest.quickstart.chat_format import train_tokenizer
from loadtest.quickstart.train import CONTEXT, Recipe, learning_rate, main, model_config


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    recipe = Recipe(steps=1000, warmup_steps=100, learning_rate=1.0)
    rates = [learning_rate(step, recipe) for step in range(recipe.steps + 1)]
    assert rates[0] == pytest.approx(0.01)
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) in (99, 100)
    assert rates[-1] == pytest.approx(0.0)


def test_the_model_is_a_tied_llama_with_grouped_queries() -> None:
    config = model_config(train_tokenizer(["a b"], 300))
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert config.head_dim % 32 == 0
    assert config.max_position_embeddings == CONTEXT
    model = LlamaForCausalLM(config)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_output_folder_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "1"])
    assert "--out" in capsys.readouterr().err
