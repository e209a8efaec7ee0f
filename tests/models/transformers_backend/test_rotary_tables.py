"""Tables hold what transformers' rotary module returns, and only a module that fits them is replaced."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.cohere.modeling_cohere import CohereConfig, CohereRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from service.models.transformers_backend.rotary_tables import RotaryTables, can_be_tables
from tests.models.transformers_backend.models import llama_config

DIM = 16
CONFIG = llama_config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0})


def initialize(module: nn.Module) -> None:
    LlamaForCausalLM(llama_config(num_hidden_layers=0))._init_weights(module)


class ByLengthRotaryEmbedding(LlamaRotaryEmbedding):
    """Turns all positions by the farthest one."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x, position_ids / position_ids.max())


def made(kind, config=CONFIG) -> nn.Module:
    with torch.device("meta"):
        return kind(config)


@pytest.mark.parametrize(
    ("module", "is_ours"),
    [
        (made(LlamaRotaryEmbedding), True),
        (made(ByLengthRotaryEmbedding), False),
        (made(CohereRotaryEmbedding, CohereConfig(hidden_size=64, num_attention_heads=4)), False),
        (nn.Linear(4, 4, device="meta"), False),
        (nn.Identity(), False),
    ],
)
def test_a_module_of_halves_by_position_alone(module: nn.Module, is_ours: bool):
    assert can_be_tables(module, DIM, initialize) == is_ours
    assert not can_be_tables(module, DIM + 2, initialize), "another size"
    assert not can_be_tables(module, DIM, lambda module: None), "frequencies that nobody fills"


def test_rows_are_what_the_module_returns():
    theirs = LlamaRotaryEmbedding(CONFIG)
    tables = RotaryTables(copy.deepcopy(theirs), DIM)
    tables.build(300, torch.device("cpu"))
    positions = torch.tensor([[7, 0, 299]])
    cos, sin = theirs(torch.empty(1, 3, 64), positions)
    rows = tables(torch.empty(1, 3, 64, dtype=torch.bfloat16), position_ids=positions)
    assert torch.equal(rows[0], cos[0])
    assert torch.equal(rows[1], sin[0] * torch.tensor([-1.0, 1.0]).repeat_interleave(DIM // 2))
    assert {each.dtype for each in rows} == {torch.float32}
