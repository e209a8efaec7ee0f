"""Graphs against their twins: the same step computed eagerly, bit for bit, and a runner without graphs."""

from __future__ import annotations

import random
import warnings
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from service.config import CacheConfig
from service.core.block_moves import BlockCopy
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.runner import graph_sizes as sizes_module
from service.runner.captured_sizes import CapturedSizes
from service.runner.choices import add_norm_rows, kept_sizes
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import MAX_DECODES, MAX_TOKENS, GraphSize, PaddedStep, graph_sizes
from service.runner.graph_step import StepOutputs
from service.runner.graph_ways import DecodeGraph, MixedGraph
from service.runner.selective_batching import decode_columns, flatten
from service.runner.sequence_rows import DeviceBlockTable
from tests.examples import examples
from tests.models.checkpoints import llama, qwen3, random_prompts
from tests.runner import uncaptured
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy
from tests.runner.plans import as_decodes, planned
from tests.structured.masks import FixedMasks

PROMPTS = random_prompts(48)
NUM_PLANS = examples(150)
CACHE = CacheConfig(block_size=16, memory_utilization=0.9, memory_bytes=64 << 20)


def random_params(count, seed):
    chance = random.Random(seed)
    return [
        SamplingParams(
            max_tokens=chance.randint(1, 20),
            temperature=chance.choice([0.0, 0.7, 1.3]),
            top_p=chance.choice([1.0, 0.9]),
            top_k=chance.choice([0, 0, 20]),
            seed=chance.randrange(2**62),
            min_p=0.05 * (seed % 5 == 1),  # then logits leave the graph for the whole sampling stage
            logit_bias=((i, 1.5), (7, -3.0)) if seed % 5 == 2 else (),
        )
        for i in range(8, 8 + count)
    ]


@pytest.mark.parametrize("mixed", [False, True], ids=["decodes", "mixed"])
def test_a_padded_size_draws_what_the_flat_batch_draws(mixed, tmp_path):
    """On the CPU, where nothing is captured: the step that a graph would hold, after a prompt each."""
    runner = load(llama(tmp_path)).runner
    params = [replace(p, min_p=0.0, logit_bias=()) for p in random_params(8, 0)]
    prompts = [PROMPTS[i][: 9 + i] for i in range(8)]
    draws = [(Sample(i, params[i].seed),) for i in range(8)]
    shares = [ScheduledSequence(i, i + 1, tuple(prompts[i]), 0, 0, (i + 3,), params[i], draws[i]) for i in range(8)]
    first = runner.launch(IterationPlan(tuple(shares[:5]))).wait().token_ids
    steps = [ScheduledSequence(i, i + 1, (first[i],), 9 + i, 0, (), params[i], draws[i]) for i in range(5)]
    if mixed:  # among the decodes, two prompts, and the beginning of one, which draws nothing
        beginning = shares[7]._replace(token_ids=shares[7].token_ids[:5], samples=())
        choices = shares[5]._replace(samples=tuple(Sample(100 + i, i) for i in range(4)))
        steps = [steps[0], choices, *steps[1:3], beginning, *steps[3:], shares[6]]
    with torch.inference_mode():
        columns = planned(steps, runner._rows)
        table = DeviceBlockTable(runner._rows, torch.device("cpu"))
        table.take_changes(0)
        inputs = (
            GraphInputs(GraphSize(56, 6), table.tensor, 16) if mixed else GraphInputs(GraphSize(8, 8), table.tensor, 16)
        )
        if mixed:
            inputs.fill(flatten(columns, runner._rows, 16))
        else:
            inputs.fill_decodes(decode_columns(columns, runner._rows, 16))
        inputs.fetch()
        padded = runner.replays._graph_step.whole(inputs.step).token_ids.tolist()
    want = list(runner.launch(IterationPlan(tuple(steps))).wait().token_ids)
    assert padded[: len(want)] == want


def test_steps_that_a_new_graph_takes_are_missed_no_more(monkeypatch):
    graphs = CapturedSizes(*[SimpleNamespace(table=None, pool=None, stream=None)] * 4, 0)
    monkeypatch.setattr(graphs, "_capture", lambda size: graphs.decodes.update({size: None}))
    graphs.recent_steps.extend([PaddedStep(5, 5, 0, None), PaddedStep(30, 30, 0, None)])
    graphs.capture([GraphSize(16, 16)])
    assert list(graphs.recent_steps) == [PaddedStep(5, 5, 0, GraphSize(16, 16)), PaddedStep(30, 30, 0, None)]


class SideBySide:
    """A runner with graphs and one without carry out the same plans and must draw the same ids."""

    def __init__(self, graphed, eager):
        self._graphed, self._eager = graphed, eager
        self.num_plans = self.num_replayed = 0

    def launch(self, plan):
        mine, theirs = self._graphed.launch(plan), self._eager.launch(plan)
        got, want = mine.wait(), theirs.wait()
        assert got.token_ids == want.token_ids
        assert not want.is_replayed
        self.num_replayed += got.is_replayed
        self.num_plans += 1
        return mine


def count_replays(graphs, monkeypatch, name):
    """graphs: StepGraphs, or the class of a way."""
    replayed = []
    replay = getattr(graphs, name)
    monkeypatch.setattr(graphs, name, lambda *how: (replayed.append(1), replay(*how))[1])
    return replayed


@pytest.fixture(params=[sizes_module.DRAWING_TOKENS, 32], ids=["narrow", "wide"])
def without_capture(request, tmp_path, monkeypatch):
    """A model whose steps are all but captured, and the same by flat batches. For 20 sequences. Wide: most steps with
    prompts draw behind what would be their graph."""
    monkeypatch.setattr(sizes_module, "DRAWING_TOKENS", request.param)
    uncaptured.without_capture(monkeypatch)
    folder = llama(tmp_path)
    loaded, eager = (load(folder, max_num_seqs=20) for _ in range(2))
    loaded.runner.replays.capture(graph_sizes(20, 300))
    return loaded, eager


def test_steps_at_fixed_places_draw_what_flat_batches_draw(without_capture, monkeypatch):
    """Without a GPU, all but the capture: which size is taken, its padding, and the block table that steps keep."""
    loaded, eager = without_capture
    again = count_replays(loaded.runner.replays._graphs, monkeypatch, "replay_again")
    both = SideBySide(loaded.runner, eager.runner)
    player = PlanPlayer(both, loaded.num_blocks, 16)
    chance = random.Random(2)
    while both.num_plans < NUM_PLANS:
        count = chance.randint(1, 30)
        chunk, max_seqs = chance.choice([7, 31, 100]), chance.choice([3, 11, 20])
        player.generate(
            chance.sample(PROMPTS, count), random_params(count, both.num_plans), chunk=chunk, max_seqs=max_seqs
        )
    assert both.num_replayed > 0.3 * NUM_PLANS
    assert len(again) > 0.03 * NUM_PLANS


@pytest.fixture
def norms_deferred(monkeypatch):
    """Wherever they can be: for models so small the timing that decides is a matter of chance."""
    monkeypatch.setattr(add_norm_rows, "_gain", lambda alike, rows, timer: float(bool(rows)))


def prompt_with_choices(first_id, num_draws):
    """Of a prompt beside others, in blocks of its own: its logits serve all choices."""
    params = SamplingParams(max_tokens=2, temperature=0.9)
    draws = tuple(Sample(first_id + i, first_id + i) for i in range(num_draws))
    return ScheduledSequence(first_id, first_id % 23, tuple(PROMPTS[0][:9]), 0, 0, (first_id % 90,), params, draws)


def check_choices(graphed, eager):
    """Choices of two prompts, more draws than tokens, beside a decode: one replay, the ids of the flat batch."""
    both = SideBySide(graphed, eager)
    alone = prompt_with_choices(31, 1)
    both.launch(IterationPlan((alone,)))
    decode = alone._replace(token_ids=(7,), num_computed_tokens=9, table_start=1, block_ids=())
    both.launch(IterationPlan((decode, prompt_with_choices(40, 14), prompt_with_choices(60, 5))))
    assert both.num_replayed == 2
    too_many = prompt_with_choices(80, 300)
    both.launch(IterationPlan((too_many,)))
    assert both.num_replayed == 2


def test_a_prompts_choices_are_drawn_in_the_same_step(without_capture):
    loaded, eager = without_capture
    check_choices(loaded.runner, eager.runner)


@pytest.mark.gpu
def test_a_prompts_choices_are_drawn_in_a_graph(tmp_path):
    folder = llama(tmp_path)
    loaded = load(folder, dtype="float32", device="cuda", max_num_seqs=20)
    eager = load(folder, dtype="float32", device="cuda", max_num_seqs=20, enforce_eager=True)
    check_choices(loaded.runner, eager.runner)


@pytest.mark.gpu
@pytest.mark.usefixtures("norms_deferred")
@pytest.mark.parametrize("save", [llama, qwen3])
def test_500_random_mixed_batches(save, tmp_path, monkeypatch):
    """In fp32, where the shapes of matrix products do not decide what is drawn."""
    folder = save(tmp_path)
    loaded, eager = load(folder, device="cuda"), load(folder, device="cuda", enforce_eager=True)
    again = count_replays(loaded.runner.replays._graphs, monkeypatch, "replay_again")
    decodes, mixed = (count_replays(way, monkeypatch, "replay") for way in (DecodeGraph, MixedGraph))
    both = SideBySide(loaded.runner, eager.runner)
    player = PlanPlayer(both, loaded.num_blocks, 16)
    chance = random.Random(1)
    while both.num_plans < 500:
        count = chance.randint(1, 48)
        chunk, max_seqs = chance.choice([7, 31, 100]), chance.choice([3, 17, 40, 64])
        player.generate(
            chance.sample(PROMPTS, count), random_params(count, both.num_plans), chunk=chunk, max_seqs=max_seqs
        )
    assert len(decodes) > 100
    assert len(mixed) > 30
    assert both.num_replayed == len(decodes) + len(again) + len(mixed)
    assert len(again) > 30


def compare_with_twins(runner, monkeypatch):
    """Every replay from now on must give its eager twin's results bit for bit. Returns the replayed inputs."""
    run, replayed = runner.replays._graphs.run, []

    def compared(step, captured, num_draws, order=None, *, has_filters):
        outputs = run(step, captured, num_draws, order, has_filters=has_filters)
        logits, ids = outputs.logits[:num_draws].clone(), outputs.token_ids[:num_draws].clone()
        parts, inputs = runner.replays._graph_step, captured.inputs.step
        num_drawn = len(inputs.draw_rows) if isinstance(captured.outputs, StepOutputs) else num_draws
        twin = parts.draw(parts.hidden(inputs), inputs, num_drawn)
        assert torch.equal(twin.logits[:num_draws], logits)
        assert torch.equal(twin.token_ids[:num_draws], ids)
        replayed.append(captured.inputs)
        return outputs

    monkeypatch.setattr(runner.replays._graphs, "run", compared)
    return replayed


@pytest.mark.gpu
@pytest.mark.usefixtures("norms_deferred")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_graph_computes_its_twin_bit_for_bit(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())
    runner = load(llama(tmp_path), dtype=dtype, device="cuda").runner
    replayed = compare_with_twins(runner, monkeypatch)
    for count in (1, 2, 3, 7, 30, 48):
        player = PlanPlayer(runner, 1000, 16, seed=count)
        player.generate(PROMPTS[:count], random_params(count, count), chunk=50)
    sizes = {len(inputs.step.token_ids) for inputs in replayed}
    assert sizes >= {1, 2, 4, 8, 32, 48, 64, 128, 192, 512}


@pytest.mark.gpu
def test_every_size_of_a_large_service_computes_its_twin_bit_for_bit(tmp_path, monkeypatch):
    """Up to the whole token budget and all seats: one batch for each graph, which fills it but for a little padding."""
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())  # timings of so small a model say nothing
    loaded = load(
        llama(tmp_path),
        dtype="bfloat16",
        device="cuda",
        max_num_seqs=MAX_DECODES,
        max_num_batched_tokens=MAX_TOKENS,
        memory_bytes=1 << 30,
    )
    runner = loaded.runner
    replayed = compare_with_twins(runner, monkeypatch)
    for cache in runner.storage.layers:
        cache.keys.normal_()
        cache.values.normal_()
    chance = random.Random(0)
    params = random_params(5, 0)
    for size in graph_sizes(MAX_DECODES, MAX_TOKENS):
        num_decodes = size.num_decodes
        lengths = [1] * num_decodes
        if size.is_mixed:
            left = size.num_tokens - num_decodes - chance.randint(0, min(3, size.num_tokens - num_decodes - 2))
            lengths += [len(part) for part in np.array_split(np.arange(left), -(-left // 400))]
        blocks = iter(range(loaded.num_blocks))
        shares = []
        for i, length in enumerate(lengths):
            computed = chance.randint(1, 40)
            table = tuple(next(blocks) for _ in range(-(-(computed + length) // 16)))
            tokens = tuple(chance.randrange(3, 200) for _ in range(length))
            shares.append(ScheduledSequence(i, i + 1, tokens, computed, 0, table, params[i % 5], (Sample(i, i),)))
        runner.launch(IterationPlan(tuple(shares))).wait()
        runner.launch(IterationPlan((), released=tuple(range(1, 1 + len(lengths))))).wait()
    assert len(replayed) == len(graph_sizes(MAX_DECODES, MAX_TOKENS))
    assert len({id(inputs) for inputs in replayed}) == len(replayed)


@contextmanager
def no_wait_for_the_device():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode calls itself a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class WithoutWaiting:
    """Launches must not wait for the device; whoever wants a result does."""

    def __init__(self, runner):
        self._runner = runner

    def launch(self, plan):
        with no_wait_for_the_device():
            return self._runner.launch(plan)


@pytest.mark.gpu
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_no_launch_waits_for_the_device(enforce_eager, tmp_path):
    loaded = load(llama(tmp_path), dtype="bfloat16", device="cuda", enforce_eager=enforce_eager)
    runner = WithoutWaiting(loaded.runner)
    player = PlanPlayer(runner, loaded.num_blocks, 16)
    player.generate(PROMPTS[:20], random_params(20, 3), chunk=31, max_seqs=9)
    player.generate(PROMPTS[:9], greedy(4))
    draws = tuple(Sample(900 + i, i) for i in range(4))
    share = ScheduledSequence(900, 9, (1, 2, 3), 0, 0, (5,), SamplingParams(max_tokens=2, temperature=0.9), draws)
    runner.launch(IterationPlan((share,), copies=(BlockCopy(1, 7), BlockCopy(2, 8))))
    runner.launch(IterationPlan((), released=(9,)))


@pytest.mark.gpu
@pytest.mark.usefixtures("norms_deferred")
@pytest.mark.parametrize(
    ("save", "kv_cache_dtype", "enforce_eager"),
    [(llama, "auto", False), (qwen3, "auto", False), (llama, "fp8", False), (llama, "fp8", True)],
)
def test_nothing_is_compiled_while_serving(save, kv_cache_dtype, enforce_eager, tmp_path, monkeypatch):
    import triton

    folder = save(tmp_path)
    loaded = load(folder, dtype="bfloat16", device="cuda", kv_cache_dtype=kv_cache_dtype, enforce_eager=enforce_eager)
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda *, repr, **_: compiled.append(repr))
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
    for seed, (chunk, max_seqs) in enumerate([(10**9, 64), (7, 3), (16, 16), (1, 5), (33, 40)]):
        player.generate(PROMPTS, random_params(len(PROMPTS), seed), chunk=chunk, max_seqs=max_seqs)
        player.generate(PROMPTS[:30], greedy(5), chunk=chunk, max_seqs=max_seqs)
        biased = [
            replace(params, logit_bias=((5, -1.0), (7, 2.0)), num_logprobs=seed, min_p=0.01 * seed)
            for params in random_params(20, seed)
        ]
        player.generate(PROMPTS[:20], biased, chunk=chunk, max_seqs=max_seqs)
    loaded.runner.launch(IterationPlan((), copies=(BlockCopy(1, 2),))).wait()
    loaded.runner.launch(IterationPlan((), copies=tuple(BlockCopy(i, 40 + i) for i in range(16)))).wait()
    draws = tuple(Sample(900 + i, i) for i in range(16))
    share = ScheduledSequence(900, 9, (1,) * 16, 0, 0, (5,), SamplingParams(max_tokens=2, temperature=0.9), draws)
    loaded.runner.launch(IterationPlan((share,))).wait()
    assert compiled == []


PARAMS = SamplingParams(max_tokens=99)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    loaded = load(llama(tmp_path_factory.mktemp("model")), max_num_seqs=8)
    with pytest.MonkeyPatch.context() as patch:
        uncaptured.without_capture(patch)
        loaded.runner.replays.capture([GraphSize(8, 8), GraphSize(4, 4), GraphSize(64, 8)])
        yield loaded.runner


@pytest.fixture
def asked(runner, monkeypatch):
    """launch(plan) -> the name of the way that computed it, and the drawn ids."""
    taken = []
    for way in runner.replays.ways:

        def noting(step, way=way, compute=way.compute):
            taken.append(type(way).__name__)
            return compute(step)

        monkeypatch.setattr(way, "compute", noting)

    def launch(plan):
        ids = runner.launch(plan).wait().token_ids
        return taken.pop(0), ids

    yield launch
    runner.launch(IterationPlan((), released=tuple(range(1, 17)))).wait()


def item(row, num_tokens=1, computed=0, sampling=PARAMS, num_samples=1):
    draws = tuple(Sample(row, i) for i in range(num_samples))
    return ScheduledSequence(row, row, (5,) * num_tokens, computed, 0, (row,), sampling, draws, Past((), 1))


def plan(*scheduled, decodes=(), version=1, **how):
    if not decodes:
        return IterationPlan(scheduled, **how)
    return IterationPlan(scheduled, decodes=as_decodes(decodes, version), **how)


def steady(*rows, computed):
    return [item(row, 1, computed)._replace(block_ids=(), table_start=1) for row in rows]


def test_plain_decodes_are_drawn_by_a_graph_and_then_again(asked):
    assert asked(plan(item(1), item(2)))[0] == "DecodeGraph"
    assert asked(plan(decodes=steady(1, 2, computed=1)))[0] == "DecodeGraph"
    assert asked(plan(decodes=steady(1, 2, computed=2)))[0] == "SameDecodesAgain"
    assert asked(plan(decodes=steady(1, 2, computed=3)))[0] == "SameDecodesAgain"
    assert asked(plan(decodes=steady(2, 1, computed=4), version=2))[0] == "DecodeGraph"


def test_again_is_not_what_stands_beside_others_or_further_on(asked):
    asked(plan(item(1), item(2)))
    asked(plan(decodes=steady(1, 2, computed=1)))
    assert asked(plan(item(3), decodes=steady(1, 2, computed=2)))[0] == "DecodeGraph"
    assert asked(plan(decodes=steady(1, 2, computed=3)))[0] == "DecodeGraph", "what is held has the third"
    assert asked(plan(item(3, 5), decodes=steady(1, 2, computed=4)))[0] == "MixedGraph"
    assert asked(plan(decodes=steady(1, 2, computed=5)))[0] == "DecodeGraph", "what is held is two tokens behind"
    assert asked(plan(item(4, 5)))[0] == "MixedGraph"
    assert asked(plan(decodes=steady(1, 2, computed=6)))[0] == "SameDecodesAgain", "nothing has come between these"


def test_masked_decodes_are_drawn_from_a_graphs_logits_and_not_again(asked):
    asked(plan(item(1), item(2)))
    asked(plan(decodes=steady(1, 2, computed=1)))
    masks = FixedMasks([-1, 0], [[7]], 301)
    way, ids = asked(plan(decodes=steady(1, 2, computed=2), masks=masks))
    assert (way, ids[1]) == ("DecodeGraphLogits", 7)
    assert asked(plan(decodes=steady(1, 2, computed=3)))[0] == "DecodeGraph"


def test_who_asks_for_more_is_drawn_kernel_by_kernel(asked):
    asking = SamplingParams(max_tokens=9, repetition_penalty=1.3)
    assert asked(plan(item(1), item(2, sampling=asking)))[0] == "DecodeGraphLogits"
    assert asked(plan(item(1, 5), item(2, sampling=asking)))[0] == "EagerStep"
    assert asked(plan(item(1, 5), item(2)))[0] == "MixedGraph"
    assert asked(plan(item(1, num_samples=2), item(2)))[0] == "MixedGraph"
    assert asked(plan(item(1, 200)._replace(block_ids=tuple(range(13)))))[0] == "EagerStep", "no size has room"


def test_rows_beyond_those_that_were_planned_leave_the_graphs(tmp_path):
    loaded = load(llama(tmp_path), max_num_seqs=2)
    with pytest.MonkeyPatch.context() as patch:
        uncaptured.without_capture(patch)
        loaded.runner.replays.capture([GraphSize(4, 4)])
        assert loaded.runner.launch(plan(item(1))).wait().is_replayed
        assert loaded.runner.launch(plan(decodes=steady(1, computed=1))).wait().is_replayed
        assert not loaded.runner.launch(plan(item(40))).wait().is_replayed
        assert not loaded.runner.launch(plan(decodes=steady(1, computed=2))).wait().is_replayed
