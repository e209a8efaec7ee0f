"""Graphs against their twins: the same step computed eagerly, bit for bit, and a runner without graphs."""

from __future__ import annotations

import random
import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from service.core.iteration_plan import BlockCopy, IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.cuda_graphs import LARGEST, graph_sizes
from service.runner.decode_inputs import DecodeInputs
from service.runner.decode_rows import decode_rows
from service.runner.device_block_table import DeviceBlockTable
from tests.models.checkpoints import llama, qwen3, random_prompts
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy

PROMPTS = random_prompts(48)


def test_sizes_are_few_below_8_and_reach_the_largest_batch():
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    assert graph_sizes(300)[-4:] == [256, 272, 288, 300]
    assert graph_sizes(4096)[-1] == LARGEST


def random_params(count, seed):
    chance = random.Random(seed)
    return [
        SamplingParams(
            max_tokens=chance.randint(1, 20),
            temperature=chance.choice([0.0, 0.7, 1.3]),
            top_p=chance.choice([1.0, 0.9]),
            top_k=chance.choice([0, 0, 20]),
            seed=chance.randrange(2**62),
            min_p=0.05 * (seed % 3 == 1),  # then logits leave the graph for the whole sampling stage
            logit_bias=((i, 1.5), (7, -3.0)) if seed % 3 == 2 else (),
        )
        for i in range(8, 8 + count)
    ]


def test_a_padded_step_draws_what_the_flat_batch_draws(tmp_path):
    """On the CPU, where nothing is captured: the step that a graph would hold, after a prompt each."""
    runner = load(llama(tmp_path)).runner
    params = random_params(5, 0)
    prompts = [PROMPTS[i][: 9 + i] for i in range(5)]
    draws = [(Sample(i, params[i].seed),) for i in range(5)]
    shares = [ScheduledSequence(i, tuple(prompts[i]), 0, 0, (i + 3,), params[i], draws[i]) for i in range(5)]
    first = runner.launch(IterationPlan(tuple(shares))).wait().token_ids
    decodes = [ScheduledSequence(i, (first[i],), 9 + i, 0, (), params[i], draws[i]) for i in range(5)]
    with torch.inference_mode():
        table = DeviceBlockTable(runner._rows, torch.device("cpu"))
        table.bring_up_to_date()
        inputs = DecodeInputs(8, table.tensor, 16)
        inputs.fill(decode_rows(decodes, runner._rows, 16))
        padded = runner._decode(inputs).token_ids[:5].tolist()
    assert padded == list(runner.launch(IterationPlan(tuple(decodes))).wait().token_ids)


class InLockstep:
    """A runner with graphs and one without carry out the same plans and must draw the same ids."""

    def __init__(self, graphed, eager):
        self._graphed, self._eager = graphed, eager
        self.num_plans = 0

    def launch(self, plan):
        mine, theirs = self._graphed.launch(plan), self._eager.launch(plan)
        assert mine.wait().token_ids == theirs.wait().token_ids
        self.num_plans += 1
        return mine


def count_replays(runner, monkeypatch):
    replayed = []
    replay = runner._graphs.replay
    monkeypatch.setattr(runner._graphs, "replay", lambda decodes: (replayed.append(1), replay(decodes))[1])
    return replayed


@pytest.mark.gpu
@pytest.mark.parametrize("save", [llama, qwen3])
def test_500_random_mixed_batches(save, tmp_path, monkeypatch):
    """In fp32, where the shapes of matrix products do not decide what is drawn."""
    folder = save(tmp_path)
    loaded, eager = load(folder, device="cuda"), load(folder, device="cuda", enforce_eager=True)
    replayed = count_replays(loaded.runner, monkeypatch)
    both = InLockstep(loaded.runner, eager.runner)
    player = PlanPlayer(both, loaded.num_blocks, 16)
    chance = random.Random(1)
    while both.num_plans < 500:
        count = chance.randint(1, 48)
        chunk, max_seqs = chance.choice([7, 31, 100]), chance.choice([3, 17, 40, 64])
        player.generate(
            chance.sample(PROMPTS, count), random_params(count, both.num_plans), chunk=chunk, max_seqs=max_seqs
        )
    assert len(replayed) > 150


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_graph_computes_its_twin_bit_for_bit(dtype, tmp_path, monkeypatch):
    runner = load(llama(tmp_path), dtype=dtype, device="cuda").runner
    graphs = runner._graphs
    replay = graphs.replay
    sizes = []

    def compared(decodes):
        drawn, count = replay(decodes), len(decodes.rows)
        logits, ids = drawn.logits.clone(), drawn.token_ids.clone()
        step = next(s for s in graphs._captured if s.inputs.num_rows >= count)
        twin = runner._decode(step.inputs)
        assert torch.equal(twin.logits[:count], logits)
        assert torch.equal(twin.token_ids[:count], ids)
        sizes.append(step.inputs.num_rows)
        return drawn

    monkeypatch.setattr(graphs, "replay", compared)
    for count in (1, 2, 3, 7, 30, 48):
        player = PlanPlayer(runner, 1000, 16, seed=count)
        player.generate(PROMPTS[:count], random_params(count, count))
    assert set(sizes) >= {1, 2, 4, 8, 32, 48}


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
    share = ScheduledSequence(900, (1, 2, 3), 0, 0, (5,), SamplingParams(max_tokens=2, temperature=0.9), draws)
    runner.launch(IterationPlan((share,), copies=(BlockCopy(1, 7), BlockCopy(2, 8))))
    runner.launch(IterationPlan((), released=(900,)))


@pytest.mark.gpu
@pytest.mark.parametrize("save", [llama, qwen3])
def test_nothing_is_compiled_while_serving(save, tmp_path, monkeypatch):
    import triton

    loaded = load(save(tmp_path), dtype="bfloat16", device="cuda")
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
    share = ScheduledSequence(900, (1,) * 16, 0, 0, (5,), SamplingParams(max_tokens=2, temperature=0.9), draws)
    loaded.runner.launch(IterationPlan((share,))).wait()
    assert compiled == []
