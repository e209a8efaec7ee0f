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
from service.runner.mixed_inputs import MixedInputs
from service.runner.selective_batching import flatten
from tests.models.checkpoints import llama, qwen3, random_prompts
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy

PROMPTS = random_prompts(48)


def decode_sizes(max_num_seqs):
    return sorted(size.num_decodes for size in graph_sizes(max_num_seqs, 2048) if not size.num_tokens)


def test_sizes_of_decodes_are_few_below_8_and_reach_the_largest_batch():
    assert decode_sizes(1) == [1]
    assert decode_sizes(6) == [1, 2, 4, 6]
    assert decode_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    assert decode_sizes(300)[-4:] == [256, 272, 288, 300]
    assert decode_sizes(4096)[-1] == LARGEST


def test_sizes_of_mixed_steps_stay_within_the_seats_and_the_budget():
    mixed = [size for size in graph_sizes(20, 200) if size.num_tokens]
    assert {size.num_decodes for size in mixed} == {8, 20}
    assert {size.num_tokens for size in mixed} == {32, 64, 128, 192}
    sizes = graph_sizes(256, 2048)
    assert sizes == sorted(sizes, key=sum, reverse=True)
    assert len(set(sizes)) == len(sizes) < 90


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
def test_a_padded_step_draws_what_the_flat_batch_draws(mixed, tmp_path):
    """On the CPU, where nothing is captured: the step that a graph would hold, after a prompt each."""
    runner = load(llama(tmp_path)).runner
    params = [replace(p, min_p=0.0, logit_bias=()) for p in random_params(8, 0)]
    prompts = [PROMPTS[i][: 9 + i] for i in range(8)]
    draws = [(Sample(i, params[i].seed),) for i in range(8)]
    shares = [ScheduledSequence(i, tuple(prompts[i]), 0, 0, (i + 3,), params[i], draws[i]) for i in range(8)]
    first = runner.launch(IterationPlan(tuple(shares[:5]))).wait().token_ids
    steps = [ScheduledSequence(i, (first[i],), 9 + i, 0, (), params[i], draws[i]) for i in range(5)]
    if mixed:  # among the decodes, two prompts, and the beginning of one, which draws nothing
        beginning = shares[7]._replace(token_ids=shares[7].token_ids[:5], samples=())
        steps = [steps[0], shares[5], *steps[1:3], beginning, *steps[3:], shares[6]]
    with torch.inference_mode():
        batch = flatten(steps, runner._rows, 16)
        table = DeviceBlockTable(runner._rows, torch.device("cpu"))
        table.bring_up_to_date()
        inputs = MixedInputs(6, 50, table.tensor, 16) if mixed else DecodeInputs(8, table.tensor, 16)
        if mixed:
            assert inputs.fits(batch)
            inputs.fill(batch)
        else:
            inputs.fill(decode_rows(steps, runner._rows, 16))
        padded = runner._step(inputs.step).token_ids.tolist()
    want = list(runner.launch(IterationPlan(tuple(steps))).wait().token_ids)
    assert padded[: len(want)] == want


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


def count_replays(runner, monkeypatch, name):
    replayed = []
    replay = getattr(runner._graphs, name)
    monkeypatch.setattr(runner._graphs, name, lambda batch: (replayed.append(1), replay(batch))[1])
    return replayed


@pytest.mark.gpu
@pytest.mark.parametrize("save", [llama, qwen3])
def test_500_random_mixed_batches(save, tmp_path, monkeypatch):
    """In fp32, where the shapes of matrix products do not decide what is drawn."""
    folder = save(tmp_path)
    loaded, eager = load(folder, device="cuda"), load(folder, device="cuda", enforce_eager=True)
    decodes, mixed = (count_replays(loaded.runner, monkeypatch, name) for name in ("replay", "replay_mixed"))
    both = InLockstep(loaded.runner, eager.runner)
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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_graph_computes_its_twin_bit_for_bit(dtype, tmp_path, monkeypatch):
    runner = load(llama(tmp_path), dtype=dtype, device="cuda").runner
    graphs = runner._graphs
    run, sizes = graphs._run, []

    def compared(step, num_draws):
        outputs = run(step, num_draws)
        logits, ids = outputs.logits.clone(), outputs.token_ids.clone()
        twin = runner._step(step.inputs.step)
        assert torch.equal(twin.logits[:num_draws], logits)
        assert torch.equal(twin.token_ids[:num_draws], ids)
        sizes.append(len(step.inputs.step.token_ids))
        return outputs

    monkeypatch.setattr(graphs, "_run", compared)
    for count in (1, 2, 3, 7, 30, 48):
        player = PlanPlayer(runner, 1000, 16, seed=count)
        player.generate(PROMPTS[:count], random_params(count, count), chunk=50)
    assert set(sizes) >= {1, 2, 4, 8, 32, 48, 8 + 32, 8 + 64, 8 + 128}


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
