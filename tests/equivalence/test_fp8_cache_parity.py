"""An 8-bit KV cache: tokens equal those of transformers' `generate` with keys and values rounded in the same way,
whatever happens to the blocks; and a model finds a needle that coarser rounding would lose."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from kernels import fp8_cache
from kernels.fp8_cache import from_fp8, to_fp8
from service.config import CacheConfig, LoraConfig, ModelSource
from service.runner.load import LoadedModel, load_executor
from service.scheduler.preemption import AlwaysSwap
from tests.engine.harness import Harness
from tests.equivalence.hf_model import random_prompts, save_random_model
from tests.equivalence.peft_model import BASE, MAX_RANK, PeftOracle, save_adapters
from tests.runner.plan_player import PlanPlayer, greedy

MAX_TOKENS = 16
BLOCK_SIZE = 16
MAX_NUM_SEQS, BUDGET = 32, 96
CASES = [("llama", "native"), ("mistral", "native"), ("gpt2", "native"), ("qwen3", "transformers")]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
"""`generate` names it `cache` from transformers 5.24 on; earlier versions know only the former name."""


class RoundedCache(DynamicCache):
    """transformers' cache, with keys and values rounded to eight bits."""

    def update(self, key_states, value_states, *arguments, **options):
        return super().update(_rounded(key_states), _rounded(value_states), *arguments, **options)


def _rounded(heads: torch.Tensor) -> torch.Tensor:
    return from_fp8(*to_fp8(heads), heads.dtype)


def load(
    folder: Path,
    implementation: str = "native",
    device: str = "cpu",
    dtype: str = "fp8",
    lora: LoraConfig | None = None,
) -> LoadedModel:
    source = ModelSource(str(folder), None, None, None, "auto", "float32", device, None, 0, implementation)
    cache = CacheConfig(BLOCK_SIZE, 0.5, 8 << 20, 8 << 20, dtype=dtype)
    return load_executor(source, folder, cache, MAX_NUM_SEQS, BUDGET, enforce_eager=True, lora=lora)


class Case:
    def __init__(self, family: str, implementation: str, folder: Path) -> None:
        self.folder = save_random_model(family, folder)
        self.implementation = implementation
        self.prompts = random_prompts(8, 400, longest=200)
        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        self.expected = [self._generated(model, prompt, RoundedCache()) for prompt in self.prompts]
        self.rounding_shows = any(
            self._generated(model, prompt, DynamicCache()) != made
            for prompt, made in zip(reversed(self.prompts), reversed(self.expected), strict=True)
        )

    @staticmethod
    @torch.inference_mode()
    def _generated(model, prompt: tuple[int, ...], cache: DynamicCache) -> list[int]:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            pad_token_id=0,
            past_key_values=cache,
        )
        return made[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(*request.param, tmp_path_factory.mktemp(request.param[0]))


@pytest.mark.parametrize("device", DEVICES)
def test_the_tokens_are_those_of_rounded_keys_and_values(case: Case, device: str):
    """All at once in chunks; preempted by swapping and by recomputation; continued from cached blocks; and with several
    choices that diverge after a shared block."""
    loaded = load(case.folder, case.implementation, device)
    assert case.rounding_shows
    harness = Harness(loaded.num_blocks, BLOCK_SIZE, MAX_NUM_SEQS, BUDGET, executor=loaded.runner)
    run_all(case, harness)
    prompt, made = case.prompts[1], case.expected[1]
    longer = harness.request((*prompt, *made[:8]), MAX_TOKENS - 8, temperature=0.0)
    assert harness.add(longer)
    harness.run()
    assert harness.tokens[longer.request_id, 0] == made[8:]
    assert harness.sink.requests[-1][0].num_cached_tokens > len(prompt) // 2
    tight = 2 * -(-(200 + MAX_TOKENS) // BLOCK_SIZE) + 1
    for preemption, num_host_blocks in ((None, 0), (AlwaysSwap(), 64)):
        harness = Harness(
            tight,
            BLOCK_SIZE,
            MAX_NUM_SEQS,
            BUDGET,
            executor=loaded.runner,
            preemption=preemption,
            num_host_blocks=num_host_blocks,
        )
        run_all(case, harness)
        moved = sum(stats.num_swapped if num_host_blocks else stats.num_dropped for stats in harness.sink.iterations)
        assert moved > 0


def run_all(case: Case, harness: Harness) -> None:
    names = []
    for number, prompt in enumerate(case.prompts):
        request = harness.request(prompt, MAX_TOKENS, n=1 + number % 3, temperature=0.0)
        harness.clock.advance(0.001)
        assert harness.add(request)
        names.append(request.request_id)
    harness.run()
    for number, name in enumerate(names):
        for choice in range(1 + number % 3):
            assert harness.tokens[name, choice] == case.expected[number]


def test_adapters_lie_in_blocks_of_eight_bits_as_they_are(tmp_path: Path):
    """They have the model's dtype, not the cache's."""
    folder = save_random_model("llama", tmp_path / "model")
    adapters = save_adapters(folder, tmp_path / "adapters")
    oracle, prompts = PeftOracle(folder, adapters), random_prompts(3, 400, longest=60)
    loaded = load(folder, lora=LoraConfig(len(adapters), MAX_RANK))
    assert loaded.adapters is not None
    known = {name: loaded.adapters.read(name, path) for name, path in adapters.items()}
    harness = Harness(
        loaded.num_blocks, BLOCK_SIZE, MAX_NUM_SEQS, BUDGET, executor=loaded.runner, num_adapter_slots=len(adapters)
    )
    asked = {}
    for name in (BASE, *adapters):
        for prompt in prompts:
            request = harness.request(prompt, 8, temperature=0.0, adapter=known.get(name))
            assert harness.add(request)
            asked[request.request_id] = oracle.generate(name, prompt, 8, past_key_values=RoundedCache())[0]
    harness.run()
    assert {name: harness.tokens[name, 0] for name in asked} == asked


def test_nearly_twice_the_blocks_fit(tmp_path: Path):
    folder = save_random_model("llama", tmp_path)
    plain, small = (load(folder, dtype=dtype) for dtype in ("auto", "fp8"))
    head_dim = plain.model_config.head_dim
    assert small.block_bytes == plain.block_bytes * (head_dim + 1) // (4 * head_dim), "of fp32"
    assert small.num_blocks == min((8 << 20) // small.block_bytes, MAX_NUM_SEQS * 512 // BLOCK_SIZE)
    assert small.host_block_bytes == small.block_bytes


# A model of one layer that looks something up. A fact is a token with a key and a value, a question one with a key; its
# answer is the fact's value. Two heads each bring half of it, the first with keys and values of about 1e4 and 1e-4, the
# second the other way round: what has one scale for both, or none, loses one of the halves.
_NUM_CODES, _CODE = 32, 16
_FACT_KEY, _FACT_VALUE, _QUESTION, _ANSWER = (slice(i * _CODE, (i + 1) * _CODE) for i in range(4))
_QUESTIONS = _NUM_CODES * _NUM_CODES
_ANSWERS = _QUESTIONS + _NUM_CODES
_FILLERS = _ANSWERS + _NUM_CODES
_NUM_FILLERS = 300
_LARGE = 1e4


def codes() -> torch.Tensor:
    """[32, 16] of +1 and -1; any two are orthogonal or opposite."""
    rows = torch.ones(1, 1)
    while len(rows) < _CODE:
        rows = torch.cat((torch.cat((rows, rows), 1), torch.cat((rows, -rows), 1)))
    return torch.cat((rows, -rows))


def save_lookup_model(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=_FILLERS + _NUM_FILLERS,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    code = codes()
    embedding = torch.zeros(config.vocab_size, 64)
    embedding[:_QUESTIONS, _FACT_KEY] = code.repeat_interleave(_NUM_CODES, 0)
    embedding[:_QUESTIONS, _FACT_VALUE] = code.repeat(_NUM_CODES, 1)
    embedding[_QUESTIONS:_ANSWERS, _QUESTION] = code
    embedding[_FILLERS:, _FACT_KEY] = _far_from(code, generator)
    embedding[_FILLERS:, _FACT_VALUE] = code[torch.randint(_NUM_CODES, (_NUM_FILLERS,), generator=generator)]
    noise = torch.randn(embedding.shape, generator=generator) * 0.1
    embedding += noise * (embedding != 0)
    half, layer = _CODE // 2, model.model.layers[0]
    parts = [*layer.self_attn.parameters(), *layer.mlp.parameters(), model.lm_head.weight]
    with torch.no_grad():
        for parameter in parts:
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(embedding)
        query, key, value, output = (getattr(layer.self_attn, f"{name}_proj").weight for name in "qkvo")
        for head, size in enumerate((_LARGE, 1 / _LARGE)):
            # Dims 16 to 31 of a head of 64 turn by less than 1e-3 in a whole context.
            place = torch.arange(_CODE) + 64 * head + 16
            query[place, torch.arange(_CODE) + _QUESTION.start] = 4 / size
            key[place, torch.arange(_CODE) + _FACT_KEY.start] = size
            known = torch.arange(half) + head * half
            value[place[:half], known + _FACT_VALUE.start] = 1 / size
            output[known + _ANSWER.start, place[:half]] = size
        model.lm_head.weight[_ANSWERS:_FILLERS, _ANSWER] = code
    model.save_pretrained(folder)
    return folder


def _far_from(code: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """[_NUM_FILLERS, 16] of +1 and -1; none agrees with a code in more than 12 of 16 places."""
    signs = torch.randint(2, (50 * _NUM_FILLERS, _CODE), generator=generator) * 2.0 - 1
    return signs[(signs @ code.T).amax(1) <= 8][:_NUM_FILLERS]


def num_needles_found(loaded: LoadedModel) -> tuple[int, int]:
    """Found, and asked. A needle is one of twelve facts, at any depth of 900 tokens; a guess is right 1 time in 32."""
    chance = random.Random(0)
    prompts, answers = [], []
    for _ in range(20):
        keys = chance.sample(range(_NUM_CODES), 12)
        values = [chance.randrange(_NUM_CODES) for _ in keys]
        prompt = [_FILLERS + chance.randrange(_NUM_FILLERS) for _ in range(900)]
        for key, value, place in zip(keys, values, chance.sample(range(900), 12), strict=True):
            prompt[place] = key * _NUM_CODES + value
        asked = chance.randrange(12)
        prompts.append((*prompt, _QUESTIONS + keys[asked]))
        answers.append(_ANSWERS + values[asked])
    player = PlanPlayer(loaded.runner, loaded.num_blocks, BLOCK_SIZE)
    made = player.generate(prompts, greedy(1), chunk=BUDGET, max_seqs=1)
    return sum(ours == [answer] for ours, answer in zip(made, answers, strict=True)), len(prompts)


@pytest.mark.parametrize("device", DEVICES)
def test_every_needle_is_found(tmp_path: Path, device: str):
    found, asked = num_needles_found(load(save_lookup_model(tmp_path), device=device))
    assert found == asked
    assert math.comb(asked, asked) * 32.0**-asked < 1e-20, "not by chance"


def scaled_by(exponent: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    def to_fp8_by_one_scale(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        elements = (heads.float() * 2.0 ** (127 - exponent)).clamp(-448, 448).to(torch.float8_e4m3fn)
        return elements, torch.full(heads.shape[:-1], exponent, dtype=torch.uint8)

    return to_fp8_by_one_scale


@pytest.mark.parametrize("exponent", [127, 127 - 12, 127 + 6])
def test_a_cache_of_one_scale_would_lose_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exponent: int):
    """Proves that the needle test can fail."""
    monkeypatch.setattr(fp8_cache, "to_fp8", scaled_by(exponent))
    found, asked = num_needles_found(load(save_lookup_model(tmp_path)))
    assert found < asked // 2
