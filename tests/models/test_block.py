from __future__ import annotations

import pytest

from service.layers.layer import Layer
from service.models.gemma import GemmaAttention
from service.models.model_config import parse_model_config
from service.models.registry import build_model
from tests.models.test_model_config import LEAST_FIELDS


@pytest.mark.parametrize("name", sorted(LEAST_FIELDS))
def test_names_in_a_checkpoint_are_the_blocks_behind_its_number(name):
    model = build_model(parse_model_config(LEAST_FIELDS[name]))
    prefix = model.layer_prefix
    named = [f"{prefix}{i}.{part}" for i, block in enumerate(model.blocks) for part in block.checkpoint_tensors()]
    assert named == [part for part in model.checkpoint_tensors() if part.startswith(prefix)]
    linears = [f"{prefix}{i}.{name}" for i, b in enumerate(model.blocks) for each in b.linears() for name in each.names]
    assert linears == [name for block in model.block_linears() for each in block for name in each.names]


def test_each_block_is_made_once(monkeypatch):
    made = list[int]()
    init = GemmaAttention.__init__

    def counted(self: Layer, config: object, layer: int) -> None:
        made.append(layer)
        init(self, config, layer)

    monkeypatch.setattr(GemmaAttention, "__init__", counted)
    config = parse_model_config(LEAST_FIELDS["GemmaForCausalLM"])
    build_model(config)
    assert made == list(range(config.num_layers))
