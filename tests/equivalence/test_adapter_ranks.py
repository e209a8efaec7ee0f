"""Adapters with tensor parallelism: base and adapters in one batch answer as on one rank, in fp32.

Each rank runs the whole engine here and reads the adapters itself. tests/distributed tests how adapters are sent to
ranks that do not read them, and tests/e2e the whole service.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from service.config import ParallelConfig
from service.layers.tensor_parallel import ALONE
from tests.equivalence.random_adapters import save_random_adapters
from tests.equivalence.rank_work import Asked, answer
from tests.equivalence.stage_work import answer_in_stages
from tests.equivalence.test_tensor_parallel import GREEDY, SAMPLED, prompts
from tests.models.checkpoints import gpt2, llama, mixtral, qwen2_moe
from tests.ranks import Where

FAMILIES = {
    "llama": partial(llama, attention_bias=True, mlp_bias=True),
    "one key-value head": partial(llama, num_key_value_heads=1),
    "mixtral": mixtral,
    "gpt2": gpt2,
}
STAGED = {"llama": llama, "qwen2-moe": partial(qwen2_moe, decoder_sparse_step=2)}
RANKS = (3, 8, 1)
MAX_TOKENS = 6


@pytest.fixture(scope="module", params=FAMILIES)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("model")
    model = FAMILIES[request.param](folder)
    return model, save_random_adapters(model, folder / "adapters", RANKS)


@pytest.mark.parametrize("family", ["llama", "qwen2-moe"])
def test_on_stages_base_and_adapters_in_one_batch_answer_as_in_one_process(
    two_somewhere: Where, tmp_path: Path, family: str
):
    """With Qwen2-MoE, the first stage has an MLP, whose linears adapters change, and the second has experts."""
    ranks, device = two_somewhere
    model = STAGED[family](tmp_path)
    adapters = save_random_adapters(model, tmp_path / "adapters", RANKS)
    asked = [
        Asked(prompt, {"seed": number, **(GREEDY if number else SAMPLED)}, name)
        for number, prompt in enumerate(prompts(2, longest=30))
        for name in ("", *adapters)
    ] * 2
    alone = answer(ALONE, model, asked, MAX_TOKENS, None, device, adapters)
    how = ParallelConfig(1, 2), tmp_path / "control", None, adapters, *(None,) * 3, device
    last, _ = ranks.run(answer_in_stages, model, asked, MAX_TOKENS, *how)
    assert last.answered.tokens == alone.tokens


@pytest.mark.each_once
@pytest.mark.parametrize(("num_blocks", "max_tokens"), [(None, MAX_TOKENS), (5, 10)], ids=["roomy", "preempted"])
def test_base_and_adapters_in_one_batch_answer_as_on_one_rank(
    two_somewhere: Where, scene: tuple[Path, dict[str, Path]], num_blocks: int | None, max_tokens: int
):
    """Each prompt with the base and every adapter, the second time from the prefix cache. There are fewer slots than
    adapters; in one case there are so few blocks that requests are preempted."""
    (ranks, device), (model, adapters) = two_somewhere, scene
    names = ("", *adapters)
    asked = [
        Asked(prompt, {"seed": number, **(GREEDY if number else SAMPLED)}, name)
        for number, prompt in enumerate(prompts(2, longest=30))
        for name in names
    ]
    alone = answer(ALONE, model, asked * 2, max_tokens, None, device, adapters)
    by_prompt = {tuple(tokens) for tokens in alone.tokens.values()}
    assert len(by_prompt) > len(asked) * 3 // 4, "each adapter says something else, or this shows nothing"
    of_ranks = ranks.run(answer, model, asked * 2, max_tokens, num_blocks, device, adapters)
    assert [each.tokens for each in of_ranks] == [alone.tokens] * 2
    assert (of_ranks[0].num_preemptions > 0) is (num_blocks is not None)
