"""A model in tensor parallel answers as one rank does: the same tokens in fp32, and close log probabilities.

Each rank runs the whole engine here, in step with the others. tests/distributed tests one engine for all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from service.layers.tensor_parallel import ALONE
from tests.equivalence.rank_work import (
    BUDGET,
    Answered,
    Asked,
    agreed,
    answer,
    answer_by_graphs,
)
from tests.models.bitsandbytes_checkpoints import BITSANDBYTES
from tests.models.checkpoints import (
    gpt2,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    olmoe,
    opt,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from tests.models.quantized_checkpoints import quantized
from tests.ranks import Ranks, Where

WHOLE_GROUPS = {"hidden_size": 128, "intermediate_size": 128}
"""Sizes that four ranks can divide into groups of 32 features."""


def quantized_llama(kind: str, folder: Path, **fields: object) -> Path:
    """kind: of quantized_checkpoints.FORMATS."""
    return quantized(llama(folder / "it", **WHOLE_GROUPS, **fields), kind)


FAMILIES = {
    "llama": partial(llama, attention_bias=True, mlp_bias=True),
    "llama, tied": partial(llama, tie_word_embeddings=True, num_key_value_heads=1),
    "llama, awq": partial(quantized_llama, "awq"),
    "llama, blocks of fp8": partial(quantized_llama, "blocks"),
    "llama, bitsandbytes": lambda folder: quantized(llama(folder / "it"), "nf4, nested", BITSANDBYTES),
    "llama, int8 by channel": partial(quantized_llama, "int8-channels"),
    "llama, int8 by tensor": partial(quantized_llama, "int8-tensor"),
    "llama, int8 in groups": partial(quantized_llama, "int8-packed"),
    "llama, int8 of gptq": partial(quantized_llama, "gptq-8"),
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": partial(qwen3, attention_bias=True, tie_word_embeddings=True),
    "qwen2-moe": partial(qwen2_moe, decoder_sparse_step=2),
    "qwen3-moe": qwen3_moe,
    "olmoe": partial(olmoe, num_key_value_heads=1),
    "gpt-oss": gpt_oss,
    "mixtral": mixtral,
    "opt": opt,
    "opt, norms last": partial(opt, do_layer_norm_before=False, word_embed_proj_dim=48),
    "gpt2": gpt2,
}
MAX_TOKENS = 4
ATOL = 2e-4
"""Tolerance of log probabilities: fp32 sums in another order."""
_VOCAB_SIZE = 301


def prompts(count: int, longest: int = 70) -> list[tuple[int, ...]]:
    chance = random.Random(5)
    lengths = [1, longest, *(chance.randint(1, longest) for _ in range(count - 2))]
    return [tuple(chance.randrange(_VOCAB_SIZE) for _ in range(length)) for length in lengths]


GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.9}
ALL_KINDS = (
    {"temperature": 0.0, "num_logprobs": 4},
    {"temperature": 0.0, "num_prompt_logprobs": 2},
    {"temperature": 0.7, "top_p": 0.8, "n": 2},
    {"temperature": 1.2, "top_k": 9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
    {"temperature": 0.8, "logit_bias": ((7, 5.0), (300, 4.0)), "num_logprobs": 0},
    {"temperature": 1.0, "allowed_token_ids": (3, 150, 170, 299)},
    SAMPLED,
    GREEDY,
)

KINDS = {"greedy": (GREEDY,), "sampled and greedy": (SAMPLED, GREEDY), "all": ALL_KINDS}


def requests_of(kinds) -> list[Asked]:
    """As many requests as fit in a batch, of these kinds in turn."""
    return [
        Asked(prompt, {"seed": 10 + i, **kinds[i % len(kinds)]}) for i, prompt in enumerate(prompts(max(6, len(kinds))))
    ]


def check_same(alone: Answered, of_ranks: list[Answered]) -> None:
    for each in of_ranks:
        assert each.tokens == alone.tokens
        for mine, others in zip(of_ranks[0], each, strict=True):
            assert mine == others, "bit for bit, on every rank"
        assert each.logprobs.keys() == alone.logprobs.keys()
        for key, logprobs in alone.logprobs.items():
            for want, got in zip(logprobs, each.logprobs[key], strict=True):
                check_near(want, got)
        for key, scores in alone.prompt_logprobs.items():
            for want, got in zip(scores, each.prompt_logprobs[key], strict=True):
                check_near(want, got)


def check_near(want, got) -> None:
    assert got.chosen == pytest.approx(want.chosen, abs=ATOL)
    assert [token for token, _ in got.top] == [token for token, _ in want.top]
    assert [value for _, value in got.top] == pytest.approx([value for _, value in want.top], abs=ATOL)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


def check_kinds(ranks: Ranks, folder: Path, kinds: tuple[dict[str, object], ...], device: str = "cpu") -> None:
    how = folder, requests_of(kinds), MAX_TOKENS, None, device
    check_same(answer(ALONE, *how), ranks.run(answer, *how))


@pytest.mark.each_once
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_two_ranks_answer_as_one(two_ranks: Ranks, folder: Path, kinds: tuple[dict[str, object], ...]):
    check_kinds(two_ranks, folder, kinds)


@pytest.mark.some(2)
@pytest.mark.load
def test_four_ranks_answer_as_one(four_ranks: Ranks, folder: Path):
    for kinds in KINDS.values():
        check_kinds(four_ranks, folder, kinds)


@pytest.fixture(scope="module")
def some_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("llama"))


FILTERED = {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.2, "top_k": 9}


@pytest.mark.parametrize(
    ("filters", "whole_bytes"),
    [((), 0), (FILTERED, 0), (FILTERED, 1 << 20)],
    ids=["unfiltered", "filtered", "filtered, few"],
)
def test_by_graphs_ranks_draw_as_one_and_gather_many_logits_for_filters_alone(
    two_ranks: Ranks, some_llama: Path, filters, whole_bytes: int
):
    asked = requests_of((SAMPLED, GREEDY, *filters))
    alone = answer(ALONE, some_llama, asked, 12)
    for by_graphs in two_ranks.run(answer_by_graphs, some_llama, asked, 12, whole_bytes):
        assert by_graphs.tokens == alone.tokens
        assert by_graphs.num_replayed > 10
        assert (by_graphs.num_gathered > 2 * BUDGET) == bool(filters), "a score and an id of each place"


def test_preempted_swapped_and_resumed_they_answer_as_one(two_somewhere: Where, some_llama: Path):
    (ranks, device), asked = two_somewhere, requests_of((GREEDY, SAMPLED))
    alone = answer(ALONE, some_llama, asked, 12, None, device)
    of_ranks = ranks.run(answer, some_llama, asked, 12, 12, device)
    assert all(each.num_preemptions > 0 for each in of_ranks)
    assert [each.tokens for each in of_ranks] == [alone.tokens] * 2


def test_with_keys_and_values_of_eight_bits_they_answer_as_one(two_somewhere: Where, some_llama: Path):
    """Each head has its own scale, and belongs to one rank."""
    ranks, device = two_somewhere
    asked, how = requests_of((GREEDY, SAMPLED)), (12, None, device, None, "fp8")
    alone = answer(ALONE, some_llama, asked, *how)
    assert alone.tokens != answer(ALONE, some_llama, asked, 12, None, device).tokens, "or this shows nothing"
    assert [each.tokens for each in ranks.run(answer, some_llama, asked, *how)] == [alone.tokens] * 2


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_ranks_agree_on_choices_and_share_the_blocks(two_ranks: Ranks, some_llama: Path, dtype):
    first, second = two_ranks.run(agreed, some_llama, dtype)
    alone = agreed(ALONE, some_llama, dtype)
    assert first == second
    *_, num_blocks, num_host_blocks, block_bytes = first
    assert 2 * block_bytes == alone[-1]
    assert num_host_blocks == alone[-2], "the swap space is the host's, whoever shares it"
    assert num_blocks == alone[-3], "of as many bytes each a rank has twice the blocks, up to what sequences can fill"


ON_GPUS = ("llama", "gpt2", "qwen2-moe", "gpt-oss", "llama, awq", "llama, blocks of fp8")


@pytest.mark.gpu
@pytest.mark.parametrize("family", ON_GPUS)
def test_two_gpus_answer_as_one(two_gpu_ranks: Ranks, tmp_path: Path, family: str):
    """Prompts kernel by kernel, decodes with CUDA graphs."""
    folder = FAMILIES[family](tmp_path)
    for kinds in KINDS.values():
        check_kinds(two_gpu_ranks, folder, kinds, "cuda")
