"""A batch of base and adapters equals PEFT's `generate` for each request, token for token in fp32.

For every family: alone, mixed, prompts in chunks, random arrivals, preempted by recomputation and by swapping, with
cached prefixes, with more adapters than slots, with several choices, and with beams.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from service.config import CacheConfig, LoraConfig, ModelSource
from service.core.adapter import Adapter
from service.runner.load import LoadedModel, load_executor
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap
from service.settings.quickstart import QUICKSTART_ADAPTERS, QUICKSTART_MODEL
from tests.engine.harness import Harness
from tests.equivalence.hf_model import CONFIGS, random_prompts, save_random_model
from tests.equivalence.peft_model import BASE, MAX_RANK, PeftOracle, save_adapters
from tests.examples import spread

MAX_TOKENS = 8
WIDTH = 3
BUDGET = 48
BLOCK_SIZE = 4
LONGEST = 80
CACHE_BYTES = 32 << 20
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Asked = tuple[str, tuple[int, ...]]
"""(adapter, prompt)."""


class Case:
    """One model with its adapters, the same prompts for each of them, and PEFT's answers."""

    def __init__(self, family: str, folder: Path) -> None:
        self.model = save_random_model(family, folder / "model")
        self.adapters = save_adapters(self.model, folder / "adapters")
        oracle = PeftOracle(self.model, self.adapters)
        prompts = random_prompts(4, 400, longest=LONGEST)
        self.names = [BASE, *self.adapters]
        self.asked: list[Asked] = [(name, prompt) for prompt in prompts for name in self.names]
        self.expected = dict(zip(self.asked, oracle.generate_each(self.asked, MAX_TOKENS), strict=True))
        self.beams = {
            asked: oracle.generate(*asked, MAX_TOKENS, num_beams=WIDTH, num_return_sequences=WIDTH)
            for asked in self.asked[-len(self.names) :]
        }


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param.replace(", ", "-")))


class Served:
    """The loaded model with its adapters. num_slots: adapter slots on the device."""

    def __init__(self, model: Path, adapters: Mapping[str, Path], device: str, num_slots: int) -> None:
        source = ModelSource(str(model), None, None, None, "auto", "float32", device, None, 0)
        cache, lora = CacheConfig(BLOCK_SIZE, 0.5, CACHE_BYTES, CACHE_BYTES), LoraConfig(num_slots, MAX_RANK)
        self.num_slots = num_slots
        self.loaded: LoadedModel = load_executor(source, model, cache, 32, BUDGET, lora=lora)
        store = self.loaded.adapters
        assert store is not None
        self.adapters: Mapping[str, Adapter] = {name: store.read(name, folder) for name, folder in adapters.items()}

    def tight_cache(self, most_sequences: int) -> dict[str, int]:
        """Room for all adapters, the longest request with `most_sequences` sequences, and little else."""
        num_blocks = LONGEST // BLOCK_SIZE + most_sequences * (MAX_TOKENS // BLOCK_SIZE + 1) + 2
        num_blocks += sum(adapter.num_blocks for adapter in self.adapters.values())
        return {"num_blocks": num_blocks, "num_host_blocks": self.loaded.num_host_blocks}

    def harness(self, **options) -> Harness:
        blocks = {"num_blocks": self.loaded.num_blocks, "num_host_blocks": 0, **options}
        return Harness(
            block_size=BLOCK_SIZE,
            max_num_seqs=32,
            max_num_batched_tokens=BUDGET,
            executor=self.loaded.runner,
            num_adapter_slots=self.num_slots,
            **blocks,
        )


@pytest.fixture(scope="module", params=DEVICES)
def served(request: pytest.FixtureRequest, case: Case) -> Served:
    return Served(case.model, case.adapters, request.param, len(case.adapters))


def add(harness: Harness, served: Served, asked: Asked, **sampling) -> str:
    name, prompt = asked
    options = {"temperature": 0.0, "adapter": served.adapters.get(name), **sampling}
    request = harness.request(prompt, MAX_TOKENS, **options)
    harness.clock.advance(0.001)
    assert harness.add(request)
    return request.request_id


def outputs(harness: Harness, ids: Mapping[Asked, str]) -> dict[Asked, list[int]]:
    return {asked: harness.tokens[request_id, 0] for asked, request_id in ids.items()}


def shuffled(case: Case, seed: int = 0) -> list[Asked]:
    return random.Random(seed).sample(case.asked, len(case.asked))


def test_the_adapters_answer_otherwise(case: Case):
    """Otherwise the tests below would prove nothing."""
    for prompt in {prompt for _, prompt in case.asked}:
        assert len({tuple(case.expected[name, prompt]) for name in case.names}) == len(case.names)


def test_alone(case: Case, served: Served):
    harness = served.harness()
    ids = {}
    for asked in spread(case.asked, 8):
        ids[asked] = add(harness, served, asked)
        harness.run()
    assert outputs(harness, ids) == {asked: case.expected[asked] for asked in ids}


@pytest.mark.each_once
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_mixed_in_one_batch(case: Case, served: Served, overlap: bool):
    """Most prompts are longer than the rest of an iteration's budget, so they are computed in chunks."""
    harness = served.harness(overlap=overlap)
    ids = {asked: add(harness, served, asked) for asked in shuffled(case)}
    harness.run()
    assert outputs(harness, ids) == case.expected


@pytest.mark.some(3)
def test_arriving_while_others_run(case: Case, served: Served):
    harness, chance = served.harness(overlap=True), random.Random(1)
    ids = {}
    for asked in shuffled(case, 1):
        ids[asked] = add(harness, served, asked)
        for _ in range(chance.randint(0, 3)):
            harness.step()
    harness.run()
    assert outputs(harness, ids) == case.expected


@pytest.mark.each_once
@pytest.mark.parametrize("preemption", [AlwaysRecompute, AlwaysSwap])
def test_preempted(case: Case, served: Served, preemption: type[AlwaysRecompute] | type[AlwaysSwap]):
    harness = served.harness(**served.tight_cache(1), preemption=preemption(), overlap=True)
    ids = {asked: add(harness, served, asked) for asked in sorted(case.asked, key=lambda asked: len(asked[1]))}
    harness.run()
    assert outputs(harness, ids) == case.expected
    assert sum(stats.num_preemptions for stats, _, _ in harness.sink.requests) > 0


@pytest.mark.some(3)
def test_with_cached_prefixes(case: Case, served: Served):
    """Each prompt again, with a continuation. Another adapter's blocks of the same prompt are no prefix of it."""
    harness, half = served.harness(), MAX_TOKENS // 2
    for asked in shuffled(case, 2):
        add(harness, served, asked)
    harness.run()
    assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) == 0
    continued = {(name, prompt): (name, (*prompt, *made[:half])) for (name, prompt), made in case.expected.items()}
    ids = {asked: add(harness, served, longer) for asked, longer in continued.items()}
    harness.run()
    assert {asked: made[:half] for asked, made in outputs(harness, ids).items()} == {
        asked: made[half:] for asked, made in case.expected.items()
    }
    cached = sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests)
    assert cached > sum(len(prompt) for _, prompt in case.asked) // 2


@pytest.mark.each_once
@pytest.mark.parametrize("num_slots", [1, 2])
def test_with_more_adapters_than_slots(case: Case, num_slots: int):
    served = Served(case.model, case.adapters, "cpu", num_slots)
    harness = served.harness(overlap=True)
    ids = {asked: add(harness, served, asked) for asked in shuffled(case, 3)}
    harness.run()
    assert outputs(harness, ids) == case.expected


@pytest.mark.some(3)
def test_every_choice_is_drawn_as_alone(case: Case, served: Served):
    """PEFT draws other tokens; ours depend only on the seed and the adapter, not on other requests in the batch."""
    some = case.asked[: len(case.names) * 2]
    alone = {}
    for asked in some:
        for choice in range(2):
            harness = served.harness()
            request_id = add(harness, served, asked, temperature=1.0, seed=7 + choice)
            harness.run()
            alone[asked, choice] = harness.tokens[request_id, 0]
    harness = served.harness(overlap=True)
    drawn = {asked: add(harness, served, asked, n=2, temperature=1.0, seed=7) for asked in some}
    greedy = {asked: add(harness, served, asked, n=2) for asked in some}
    harness.run()
    assert {(asked, i): harness.tokens[drawn[asked], i] for asked, i in alone} == alone
    assert {(asked, i): harness.tokens[greedy[asked], i] for asked, i in alone} == {
        (asked, i): case.expected[asked] for asked, i in alone
    }


@pytest.mark.each_once
@pytest.mark.parametrize("preemption", [None, AlwaysRecompute, AlwaysSwap])
def test_beams(case: Case, served: Served, preemption: type[AlwaysRecompute] | type[AlwaysSwap] | None):
    options = {} if preemption is None else {**served.tight_cache(WIDTH), "preemption": preemption()}
    harness = served.harness(overlap=True, **options)
    ids = {}
    for name, prompt in case.beams:
        adapter = served.adapters.get(name)
        request = harness.beam_request(prompt, MAX_TOKENS, WIDTH, WIDTH, adapter=adapter)
        assert harness.add(request)
        ids[name, prompt] = request.request_id
    greedy = {asked: add(harness, served, asked) for asked in shuffled(case, 4)}
    harness.run()
    assert {asked: [harness.tokens[ids[asked], i] for i in range(WIDTH)] for asked in ids} == case.beams
    assert outputs(harness, greedy) == case.expected
    preemptions = sum(stats.num_preemptions for stats, _, _ in harness.sink.requests)
    assert preemption is None or preemptions > 0


def test_the_shipped_adapter_beside_the_shipped_model():
    """Each question twice in one batch, once with the pirate adapter. The beginnings of both are equal to PEFT's."""
    adapters = {"pirate": QUICKSTART_ADAPTERS / "pirate"}
    oracle = PeftOracle(QUICKSTART_MODEL, adapters)
    served = Served(QUICKSTART_MODEL, adapters, "cpu", num_slots=1)
    tokenizer = Tokenizer.from_file(str(QUICKSTART_MODEL / "tokenizer.json"))
    questions = ["How do I start it?", "What is PagedAttention?", "Who are you?"]
    texts = [f"<|bos|><|user|>{question}<|end|><|assistant|>" for question in questions]
    prompts = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    harness = served.harness()
    ids = {(name, prompt): add(harness, served, (name, prompt)) for prompt in prompts for name in (BASE, "pirate")}
    harness.run()
    answers = outputs(harness, ids)
    assert answers == {asked: oracle.generate(*asked, MAX_TOKENS)[0] for asked in ids}
    for (name, _), answer in answers.items():
        assert tokenizer.decode(answer).startswith("Ahoy!") == (name == "pirate")
