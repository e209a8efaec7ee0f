"""A deterministic request has the same bits as alone (ids and log probabilities), in bf16 through the whole engine: in
any batch, with any chunks, after any preemption, and from cached blocks of any other deterministic request.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import LlamaConfig

from kernels import ordered_linear
from kernels.cpu_loops import cpu_loops
from service.config import CacheConfig, LoraConfig, ModelSource
from service.core.request import Request
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.layers.packed_weight import WeightForm
from service.models.registry import ARCHITECTURES
from service.runner.choices import weight_forms
from service.runner.load import LoadedModel, load_executor
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap, Preemption
from service.scheduler.speculation import Speculation
from service.settings.quickstart import QUICKSTART_MODEL
from tests.e2e.short_quickstart import short_quickstart_folder
from tests.engine.harness import Harness, ListSink
from tests.equivalence.random_adapters import save_random_adapters
from tests.equivalence.rank_work import Asked, alone_and_among
from tests.equivalence.stage_work import Remembered
from tests.examples import FACTOR, examples
from tests.models import checkpoints
from tests.models.quantized_checkpoints import quantized
from tests.ranks import Ranks

BLOCK_SIZE = 16
MAX_TOKENS = 6
AT_ONCE = {"llama": checkpoints.llama, "qwen3": checkpoints.qwen3, "mistral": checkpoints.mistral}
WITH_EXPERTS = {
    "mixtral": checkpoints.mixtral, "qwen2-moe": checkpoints.qwen2_moe, "qwen3-moe": checkpoints.qwen3_moe,
    "gpt-oss": checkpoints.gpt_oss, "olmoe": checkpoints.olmoe,
}  # fmt: skip
WITHOUT_LOOPS = {
    "gpt2": checkpoints.gpt2, "opt": checkpoints.opt, "gemma": checkpoints.gemma, "gemma2": checkpoints.gemma2,
    "gemma3": checkpoints.gemma3,
}  # fmt: skip
"""Not all of their operations are compiled loops on a CPU."""
ONE_BY_ONE = {**WITHOUT_LOOPS, **WITH_EXPERTS}
CPU_FAMILIES = {"phi3": checkpoints.phi3, "qwen2": checkpoints.qwen2}
WIDTHS: Mapping[str, Any] = {"head_dim": 32, "vocab_size": 320}
"""Sizes that a CPU's compiled loops support."""
GPU_WIDTHS: Mapping[str, Any] = {"head_dim": 64, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128}
"""Sizes that a GPU's kernels support."""
GPU_FAMILIES = {
    "gemma": (checkpoints.gemma, GPU_WIDTHS),
    "gemma2": (checkpoints.gemma2, GPU_WIDTHS),
    "gemma3": (checkpoints.gemma3, GPU_WIDTHS),
    "phi3": (checkpoints.phi3, {"vocab_size": 320, "hidden_size": 128, "num_attention_heads": 2}),
    "qwen2": (checkpoints.qwen2, {"vocab_size": 320, "hidden_size": 128, "num_attention_heads": 2}),
    "gpt2": (checkpoints.gpt2, {"vocab_size": 320, "hidden_size": 128, "num_attention_heads": 2}),
    "opt": (checkpoints.opt, {"vocab_size": 320, "hidden_size": 128, "num_attention_heads": 2, "ffn_dim": 128,
                              "word_embed_proj_dim": 128}),
}  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ON_A_GPU = [pytest.param((name, "cuda"), marks=pytest.mark.gpu, id=f"{name}-gpu") for name in (*AT_ONCE, "quickstart")]

Bits = Mapping[tuple[str, int], tuple[Sequence[int], Sequence[object]]]
"""(request, choice) -> its ids, and its log probabilities unrounded."""


@pytest.fixture(scope="module", autouse=True)
def two_forms() -> Iterator[None]:
    """Products with many rows use another kernel than those with few, whichever is faster on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_forms, "_fastest", lambda both, timer: WeightForm.BOTH)
        yield


def widths(device: str) -> Mapping[str, Any]:
    return WIDTHS if device == "cpu" else GPU_WIDTHS


def load(
    folder: Path, dtype: str = "bfloat16", max_num_seqs: int = 64, lora: LoraConfig | None = None,
    choices_file: Path | None = None, cache_dtype: Literal["auto", "fp8"] = "auto", enforce_eager: bool = False,
    **changes: Any,
) -> LoadedModel:  # fmt: skip
    source = replace(ModelSource(str(folder), None, None, None, "auto", dtype, "cpu", None, 0), **changes)
    cache = CacheConfig(BLOCK_SIZE, 0.5, 16 << 20, 1 << 24, dtype=cache_dtype)
    return load_executor(
        source, folder, cache, max_num_seqs, 256, enforce_eager=enforce_eager, lora=lora, choices_file=choices_file
    )


@pytest.fixture(scope="module", params=[*((name, "cpu") for name in (*AT_ONCE, "quickstart")), *ON_A_GPU], ids=str)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """On a GPU only half of the graphs are captured, so that steps are computed with and without graphs."""
    name, device = request.param
    if name == "quickstart":
        folder = QUICKSTART_MODEL if device == "cuda" else short_quickstart_folder()
    else:
        folder = AT_ONCE[name](tmp_path_factory.mktemp(name), **widths(device))
    model = load(folder, device=device)
    assert model.batches_deterministic or device == "cpu"
    if device == "cuda":
        model.runner.replays.capture(model.choices.graphs[::2], asked=True)
    return model


EACH_ALONE = [
    *((name, "cpu") for name in ONE_BY_ONE),
    *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in WITH_EXPERTS),
]


def harness_of(loaded: LoadedModel, num_blocks: int | None = None, caches: bool = False, **changes: Any) -> Harness:
    return Harness(
        num_blocks or loaded.num_blocks,
        BLOCK_SIZE,
        executor=loaded.runner,
        prefix_cache=ChainedPrefixCache(BLOCK_SIZE) if caches else NoPrefixCache(),
        **{"max_num_seqs": 64, "max_num_batched_tokens": 256, **changes},
    )


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(3, 300) for _ in range(length))


def asking(harness: Harness) -> list[Request]:
    """Deterministic requests of every kind; the last but one runs as `best_of` does."""
    ask: dict[str, Any] = {"deterministic": True, "num_logprobs": 3}
    beams = harness.beam_request(prompt_of(4, 9), MAX_TOKENS, width=3, n=2)
    return [
        harness.request(prompt_of(0, 70), MAX_TOKENS, temperature=0.0, **ask),
        harness.request(prompt_of(1, 33), MAX_TOKENS, seed=7, **ask),
        harness.request(prompt_of(2, 5), MAX_TOKENS, n=3, seed=8, top_p=0.9, top_k=40, **ask),
        harness.request(prompt_of(3, 40), MAX_TOKENS, seed=9, repetition_penalty=1.2, num_prompt_logprobs=2, **ask),
        harness.request(prompt_of(7, 12), MAX_TOKENS, n=3, seed=10, num_logprobs=0, deterministic=True),
        replace(beams, sampling=replace(beams.sampling, deterministic=True)),
    ]


def others(harness: Harness, count: int) -> list[Request]:
    """Requests of every kind; some are deterministic, most are not."""
    chance = random.Random(count)

    def other(i: int) -> Request:
        prompt, max_tokens = prompt_of(100 + i, chance.choice((1, 2, 17, 60))), chance.randint(1, 6)
        if i % 16 == 7:
            return harness.beam_request(prompt, max_tokens, width=2)
        return harness.request(
            prompt,
            max_tokens,
            n=chance.choice((1, 1, 2)),
            seed=i,
            temperature=chance.choice((0.0, 1.0)),
            top_p=chance.choice((1.0, 0.9)),
            presence_penalty=chance.choice((0.0, 0.0, 0.5)),
            num_logprobs=chance.choice((None, 2)),
            num_prompt_logprobs=chance.choice((None, None, 1)),
            deterministic=i % 5 == 0,
        )

    return [other(i) for i in range(count)]


def run(harness: Harness, requests: Iterable[Request], steps_between: Callable[[], int] = lambda: 0) -> None:
    for request in requests:
        harness.clock.advance(0.001)
        assert harness.add(request)
        for _ in range(steps_between()):
            harness.step()
    harness.run()


def bits_of(harness: Harness, requests: Sequence[Request]) -> Bits:
    """Keys: the request's index in `requests`, and the choice."""
    places = {request.request_id: f"{place}" for place, request in enumerate(requests)}
    bits = {
        (places[name], choice): (tokens, harness.logprobs[name, choice])
        for (name, choice), tokens in harness.tokens.items()
        if name in places
    }
    prompts = {(places[name], -1): ((), scored) for name, scored in harness.prompt_logprobs.items() if name in places}
    return bits | prompts


EVERY_KIND = slice(None)


def some_kinds(number: int) -> slice:
    """Every second kind of request; with the next number the others."""
    return EVERY_KIND if FACTOR > 1 else slice(number % 2, None, 2)


def alone(loaded: LoadedModel, kinds: slice = EVERY_KIND) -> Bits:
    bits: dict[tuple[str, int], Any] = {}
    for place in range(len(asking(harness_of(loaded))[kinds])):
        harness = harness_of(loaded)
        request = asking(harness)[kinds][place]
        run(harness, [request])
        bits |= {(f"{place}", choice): found for (_, choice), found in bits_of(harness, [request]).items()}
    return bits


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> Bits:
    return alone(loaded)


def among(loaded: LoadedModel, count: int, *, caches: bool = False, kinds: slice = EVERY_KIND, **changes: Any) -> Bits:
    harness = harness_of(loaded, caches=caches, **changes)
    wanted, company = asking(harness)[kinds], others(harness, count)
    chance = random.Random(1)
    every = [*wanted, *company]
    chance.shuffle(every)
    run(harness, every, lambda: chance.choice((0, 0, 1)))
    return bits_of(harness, wanted)


@pytest.mark.each_once
@pytest.mark.parametrize("count", [8, 64])
def test_among_others(loaded: LoadedModel, expected: Bits, count: int):
    assert among(loaded, as_many_as_show_it(loaded, count)) == expected


def as_many_as_show_it(loaded: LoadedModel, count: int) -> int:
    """Where deterministic requests are computed one by one, none is in a step of many rows: fewer show as much."""
    return count if loaded.batches_deterministic else min(count, examples(24))


@pytest.mark.parametrize("device", DEVICES)
def test_among_as_many_as_there_is_room_for(tmp_path: Path, device: str):
    """A step of many rows uses another product than one of few rows, unless one of them is deterministic."""
    loaded = load(checkpoints.llama(tmp_path, **widths(device)), max_num_seqs=256, device=device)
    assert among(loaded, as_many_as_show_it(loaded, 256), max_num_seqs=256) == alone(loaded)


@pytest.mark.parametrize("device", DEVICES)
def test_beside_adapters(tmp_path: Path, device: str):
    """With and without an adapter, beside requests with other adapters and with none."""
    folder = checkpoints.llama(tmp_path / "model", **widths(device))
    loaded = load(folder, lora=LoraConfig(2, 8), device=device)
    assert loaded.batches_deterministic or device == "cpu"
    store = loaded.adapters
    assert store is not None
    read = [store.read(name, at) for name, at in save_random_adapters(folder, tmp_path, (3, 8)).items()]

    def harness_with_slots() -> Harness:
        return harness_of(loaded, num_adapter_slots=2)

    def wanted(harness: Harness) -> list[Request]:
        ask: dict[str, Any] = {"deterministic": True, "num_logprobs": 3, "seed": 5}
        return [harness.request(prompt_of(8, 40), MAX_TOKENS, adapter=adapter, **ask) for adapter in (None, *read)]

    beside = harness_with_slots()
    found, company = wanted(beside), others(beside, 9)
    company += [beside.request(prompt_of(20 + i, 25), 5, adapter=read[i % 2], seed=i) for i in range(6)]
    run(beside, [*company[::2], *found, *company[1::2]])
    for place, bits in enumerate(bits_of(beside, [request]) for request in found):
        harness = harness_with_slots()
        request = wanted(harness)[place]
        run(harness, [request])
        assert bits_of(harness, [request]) == bits


def test_of_ranks(two_ranks: Ranks, tmp_path: Path):
    """As alone on the same number of ranks."""
    folder = checkpoints.llama(tmp_path, **WIDTHS, intermediate_size=128)
    kinds = {"seed": 3}, {"temperature": 0.0}, {"seed": 4, "n": 2, "top_p": 0.9}
    asked = [Asked(prompt_of(i, 9 + 13 * i), {"num_logprobs": 2, **kind}) for i, kind in enumerate(kinds)]
    company = [Asked(prompt_of(30 + i, 5 + 9 * i), {"seed": i}) for i in range(6)]
    for rank_alone, rank_among in two_ranks.run(alone_and_among, folder, asked, company, MAX_TOKENS):
        assert rank_alone == rank_among


@pytest.mark.each_once
@pytest.mark.parametrize("budget", [16, 23, 64])
def test_in_any_pieces(loaded: LoadedModel, expected: Bits, budget: int):
    assert among(loaded, 3, max_num_seqs=16, max_num_batched_tokens=budget) == expected


@pytest.mark.some(2)
def test_overlapped(loaded: LoadedModel, expected: Bits):
    assert among(loaded, 7, overlap=True) == expected


@pytest.mark.some(2)
def test_with_drafts(loaded: LoadedModel, expected: Bits):
    """A draft adds rows to a step, and accepted ones are several tokens at once."""
    known = {prompt_of(0, 70): list(expected["0", 0][0]), prompt_of(1, 33): list(expected["1", 0][0])}
    sink = ListSink()
    drafts = Speculation(3, 200, lambda: Remembered(defaultdict(list, known)))
    assert among(loaded, 3, speculation=drafts, sink=sink) == expected
    assert sum(right for stats in sink.iterations for _, right in stats.drafts) > 0


@pytest.mark.each_once
@pytest.mark.parametrize("preemption", [AlwaysRecompute(), AlwaysSwap()], ids=["recomputed", "swapped"])
def test_preempted(loaded: LoadedModel, expected: Bits, preemption: Preemption):
    sink = ListSink()
    room = {"num_blocks": 12, "num_host_blocks": loaded.num_host_blocks}
    assert among(loaded, 12, preemption=preemption, sink=sink, **room) == expected
    assert sum(stats.num_preemptions for stats, _, _ in sink.requests) > 0


@pytest.mark.some(2)
def test_twice_and_from_blocks_that_are_found(loaded: LoadedModel, expected: Bits):
    harness = harness_of(loaded, caches=True)
    for _ in range(2):
        wanted = asking(harness)
        run(harness, [*others(harness, 5), *wanted])
        assert bits_of(harness, wanted) == expected
    assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) > 100


@pytest.mark.some(2)
def test_from_blocks_that_decodes_have_made(loaded: LoadedModel):
    """A prompt that begins with another's prompt and answer: decodes made the answer's blocks, not a prompt."""
    prompt = prompt_of(5, 10)
    ask: dict[str, Any] = {"deterministic": True, "num_logprobs": 2}
    harness = harness_of(loaded, caches=True)
    first = harness.request(prompt, 40, temperature=0.0, **ask)
    run(harness, [first])
    longer = (*prompt, *harness.tokens[first.request_id, 0][:36], 7, 8)
    again = harness.request(longer, MAX_TOKENS, seed=3, **ask)
    run(harness, [*others(harness, 3), again])
    fresh = harness_of(loaded)
    run(fresh, [fresh.request(longer, MAX_TOKENS, seed=3, **ask)])
    assert bits_of(harness, [again]) == bits_of(fresh, list(fresh.requests.values()))
    assert max(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) == 32


def test_who_does_not_ask_finds_no_blocks_of_who_does(loaded: LoadedModel):
    """And the other way round: their bits may differ."""
    harness = harness_of(loaded, caches=True)
    run(harness, [harness.request(prompt_of(6, 40), 2, deterministic=asks) for asks in (False, True)])
    assert [stats.num_cached_tokens for stats, _, _ in harness.sink.requests] == [0, 0]


@pytest.mark.parametrize(("name", "device"), EACH_ALONE)
def test_one_token_after_the_other_where_operations_are_not_our_own(tmp_path: Path, name: str, device: str):
    loaded = load(ONE_BY_ONE[name](tmp_path), device=device)
    assert not loaded.batches_deterministic
    kinds = some_kinds(list(ONE_BY_ONE).index(name))
    assert among(loaded, 4, kinds=kinds, max_num_batched_tokens=50) == alone(loaded, kinds)


@pytest.mark.parametrize("name", CPU_FAMILIES)
def test_other_families_of_a_cpu_are_batched(tmp_path: Path, name: str):
    loaded = load(CPU_FAMILIES[name](tmp_path, hidden_size=128, **{**WIDTHS, "num_attention_heads": 4}))
    assert loaded.batches_deterministic is (cpu_loops() is not None)
    kinds = some_kinds(list(CPU_FAMILIES).index(name))
    in_pieces = among(loaded, 9, kinds=kinds, max_num_batched_tokens=50)
    assert in_pieces == among(loaded, 12, kinds=kinds, caches=True) == alone(loaded, kinds)


def test_no_family_is_left_out():
    """Neither on a CPU nor on a GPU."""

    def plain(architecture: str) -> str:
        return architecture.lower().removesuffix("forcausallm").removesuffix("lmheadmodel")

    known = {plain(architecture) for architecture in ARCHITECTURES}
    for there in ({**AT_ONCE, **CPU_FAMILIES, **ONE_BY_ONE}, {**AT_ONCE, **GPU_FAMILIES, **WITH_EXPERTS}):
        assert {name.replace("-", "") for name in there} == known


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_other_families_of_a_gpu_are_batched(tmp_path: Path, name: str):
    """Families with GELU, layer norms, soft caps and windows, merged weights."""
    make, sizes = GPU_FAMILIES[name]
    loaded = load(make(tmp_path, **sizes), device="cuda")
    assert loaded.batches_deterministic
    loaded.runner.replays.capture(loaded.choices.graphs[::2], asked=True)
    assert among(loaded, 9, max_num_batched_tokens=50) == among(loaded, 12, caches=True) == alone(loaded)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["wide", "fp8 cache", "fp8 weights", "transformers' modules"])
def test_what_has_no_batched_way_is_computed_token_by_token(tmp_path: Path, kind: str, device: str):
    changes: Mapping[str, Any] = {
        "wide": {"dtype": "float32"},
        "fp8 cache": {"cache_dtype": "fp8"},
        "fp8 weights": {"quantization": "fp8"},
        "transformers' modules": {"implementation": "transformers"},
    }[kind]
    loaded = load(checkpoints.llama(tmp_path, **widths(device)), device=device, **changes)
    assert device == "cpu" or not loaded.batches_deterministic
    assert among(loaded, 3, caches=True, max_num_batched_tokens=60) == alone(loaded)


QUANTIZED = ["fp8", "blocks", "awq", "packed"]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_weights_are_batched_on_a_cpu(tmp_path: Path, kind: str):
    plain = checkpoints.llama(tmp_path / "llama", **widths("cpu"))
    folder = plain if kind == "fp8" else quantized(plain, kind)
    loaded = load(folder, quantization="fp8" if kind == "fp8" else None)
    assert loaded.batches_deterministic is (cpu_loops() is not None)
    kinds = some_kinds(QUANTIZED.index(kind))
    in_pieces = among(loaded, 9, kinds=kinds, max_num_batched_tokens=50)
    assert in_pieces == among(loaded, 12, kinds=kinds, caches=True) == alone(loaded, kinds)


@pytest.mark.parametrize("device", DEVICES)
def test_after_a_restart_with_the_same_choices(tmp_path: Path, device: str):
    folder, choices = checkpoints.llama(tmp_path, **widths(device)), tmp_path / "choices.json"
    first = alone(load(folder, choices_file=choices, device=device))
    again = load(folder, choices_file=choices, device=device)
    assert choices.exists() and among(again, 9) == first


@pytest.mark.parametrize("device", DEVICES)
def test_by_graphs_or_kernel_by_kernel(tmp_path: Path, device: str):
    """On a CPU: by recorded steps or operation by operation."""
    folder = checkpoints.llama(tmp_path, **widths(device))
    by_graphs, eager = load(folder, device=device), load(folder, device=device, enforce_eager=True)
    if device == "cuda":
        by_graphs.runner.replays.capture(by_graphs.choices.graphs, asked=True)
        assert not eager.choices.graphs
    assert among(by_graphs, 9) == among(eager, 9) == alone(eager)


@pytest.mark.gpu
def test_products_that_cublas_multiplies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With few rows, as for a prompt in small chunks, it is not used."""
    asked = set()

    def watch(name: str) -> None:
        multiply = getattr(ordered_linear, name)
        monkeypatch.setattr(ordered_linear, name, lambda *args, **how: (asked.add(name), multiply(*args, **how))[1])

    watch("unsplit_linear_triton")
    watch("unsplit_add_norm_triton")
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=6144, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=4096, max_position_embeddings=512, initializer_range=0.1, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    loaded = load(tmp_path, device="cuda", load_format="dummy")
    assert {str(each.ordered) for each in loaded.choices.linears.values()} == {"cublas"}
    first = alone(loaded)
    assert among(loaded, 20, max_num_batched_tokens=16, max_num_seqs=16) == first
    asked.clear()
    assert among(loaded, 20) == among(loaded, 40, caches=True) == first
    assert len(asked) == 2


@pytest.mark.load
def test_a_model_of_135_million_parameters():
    """SmolLM2-135M-Instruct, from the folder in HEADRACE_SMOLLM2."""
    folder = os.environ.get("HEADRACE_SMOLLM2")
    if folder is None:
        pytest.skip("HEADRACE_SMOLLM2 names no folder")
    loaded = load(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")
    assert among(loaded, 30, caches=True) == among(loaded, 5, max_num_batched_tokens=64) == alone(loaded)


@pytest.mark.parametrize("device", DEVICES)
def test_a_server_where_all_are_need_not_be_asked(tmp_path: Path, device: str):
    """It starts again to the same bits."""
    folder = checkpoints.llama(tmp_path, **widths(device))
    asked = alone(load(folder, device=device))
    for _ in range(2):
        harness = harness_of(load(folder, device=device, deterministic=True))
        wanted = [replace(each, sampling=replace(each.sampling, deterministic=False)) for each in asking(harness)]
        run(harness, [*others(harness, 9), *wanted])
        assert bits_of(harness, wanted) == asked
