"""Plans in, ids out: greedy outputs equal transformers' `generate` token for token in fp32 on the CPU."""

from __future__ import annotations

import time

import pytest
import torch

from service.core.block_moves import BlockCopy, Transfer
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.runner import eager_step
from service.runner.cuda_graphs import SameDecodesAgain, StepGraphs
from service.runner.host_blocks import PlainHostBlocks
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.kv_transfer import KvTransfer
from service.runner.model_runner import LaunchedIteration
from service.runner.sequence_rows import DeviceBlockTable
from service.runner.step import Outputs
from tests.examples import examples
from tests.models.checkpoints import (
    generate_each,
    gpt2,
    llama,
    logits_of,
    mistral,
    opt,
    oracle,
    qwen2,
    qwen3,
    random_prompts,
)
from tests.runner.faulty_ids import FaultyIds
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy
from tests.structured.masks import FixedMasks

NUM_TOKENS = 8
PROMPTS = random_prompts(64)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama": (llama, {"rope_parameters": LLAMA3}),
    "llama, tied, head_dim 20, multi-query": (
        llama,
        {"tie_word_embeddings": True, "head_dim": 20, "num_key_value_heads": 1},
    ),
    "qwen3": (qwen3, {"tie_word_embeddings": True}),
    "qwen2": (qwen2, {}),
    "mistral": (mistral, {}),
    "opt": (opt, {}),
    "opt, norms last, narrow embeddings": (opt, {"do_layer_norm_before": False, "word_embed_proj_dim": 48}),
    "gpt2": (gpt2, {}),
}
NUM_PROMPTS = {"llama": min(64, examples(32)), "qwen3": min(64, examples(32))}
FEWER_PROMPTS = min(24, examples(16))
NUM_ALONE = examples(8)


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory):
    """(folder, what generate makes of each of the first prompts)"""
    save, changes = MODELS[request.param]
    torch.manual_seed(0)
    folder = save(tmp_path_factory.mktemp("model"), **changes)
    model = oracle(folder)
    prompts = PROMPTS[: NUM_PROMPTS.get(request.param, FEWER_PROMPTS)]
    return folder, generate_each(model, prompts, NUM_TOKENS)


def check(checkpoint, block_size=16, device="cpu", num_prompts=None, **how):
    folder, want = checkpoint
    want = want[:num_prompts]
    loaded = load(folder, block_size=block_size, device=device)
    player = PlanPlayer(loaded.runner, loaded.num_blocks, block_size)
    assert player.generate(PROMPTS[: len(want)], greedy(NUM_TOKENS), **how) == want


def test_each_alone(checkpoint):
    check(checkpoint, max_seqs=1, num_prompts=NUM_ALONE)


def test_all_at_once(checkpoint):
    check(checkpoint)


def test_prompts_in_chunks_beside_decodes(checkpoint):
    check(checkpoint, chunk=37, max_seqs=20)


@pytest.mark.each_once
@pytest.mark.parametrize("block_size", [1, 5])
def test_other_block_sizes(checkpoint, block_size):
    check(checkpoint, block_size=block_size, chunk=64)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{"max_seqs": 1}, {}, {"chunk": 37, "max_seqs": 20}], ids=str)
def test_a_gpu_in_fp32_agrees(checkpoint, how):
    check(checkpoint, device="cuda", **how)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("save", [llama, mistral, qwen2, qwen3, opt, gpt2])
def test_bf16_differs_only_between_near_ties(save, device, tmp_path, monkeypatch):
    """At the first difference each side's token is among the other's top 5."""
    folder = save(tmp_path)
    theirs = oracle(folder, torch.bfloat16)
    loaded = load(folder, dtype="bfloat16", device=device)
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
    prompts = PROMPTS[:24]
    ours = player.generate(prompts, greedy(NUM_TOKENS))
    seen = []
    monkeypatch.setattr(
        loaded.runner.replays, "ways", loaded.runner.replays.ways[-1:]
    )  # graphs do not call what is put in its place here
    monkeypatch.setattr(eager_step, "sample", lambda logits, batch, **_: (seen.append(logits), logits.argmax(-1))[1])
    for prompt, made, want in zip(prompts, ours, generate_each(theirs, prompts, NUM_TOKENS), strict=True):
        at = next((i for i in range(NUM_TOKENS) if made[i] != want[i]), None)
        if at is None:
            continue
        context = prompt + want[:at]
        player.generate([context], greedy(1))
        assert want[at] in seen[-1][0].topk(5).indices.tolist()
        assert made[at] in logits_of(theirs, context)[-1].topk(5).indices.tolist()


@pytest.fixture(scope="module")
def loaded_once(tmp_path_factory):
    torch.manual_seed(0)
    return load(llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def loaded(loaded_once):
    """No sequence is alive before or after a test."""
    yield loaded_once
    run(loaded_once, released=tuple(range(1, 21)))


def run(loaded, *shares, **plan):
    return loaded.runner.launch(IterationPlan(shares, **plan)).wait().token_ids


def share(sequence_id, tokens, block_ids=(), computed=0, start=0, seeds=(0,), **sampling):
    params = SamplingParams(max_tokens=9, **{"temperature": 0.0, **sampling})
    samples = tuple(Sample(sequence_id + i, seed) for i, seed in enumerate(seeds))
    return ScheduledSequence(
        sequence_id, sequence_id + 1, tuple(tokens), computed, start, tuple(block_ids), params, samples
    )


def test_ids_come_in_the_plans_order(loaded):
    """Though decodes are computed before prompts and long contexts before short ones."""
    alone = [run(loaded, share(i, PROMPTS[i][: 3 + i], (4 + i,)), released=(i + 1,))[0] for i in range(5)]
    for i in (1, 3):  # these two come as decodes of their last token
        run(loaded, share(i, PROMPTS[i][: 2 + i], (4 + i,), seeds=()), released=(i + 1,))
    together = run(
        loaded,
        share(0, PROMPTS[0][:3], (4,)),
        share(1, PROMPTS[1][3:4], (), computed=3),
        share(2, PROMPTS[2][:5], (6,), seeds=()),
        share(3, PROMPTS[3][5:6], (), computed=5),
        share(4, PROMPTS[4][:7], (8,)),
    )
    assert together == (alone[0], alone[1], alone[3], alone[4])


def test_several_draws_from_one_prompt(loaded):
    """The n choices of a prompt: as if each had computed it by itself."""
    prompt = PROMPTS[2][:10]
    seeds = (5, 6, 7, 5)
    together = run(loaded, share(0, prompt, (0,), seeds=seeds, temperature=1.5), released=(1,))
    alone = [run(loaded, share(0, prompt, (0,), seeds=(seed,), temperature=1.5), released=(1,))[0] for seed in seeds]
    assert list(together) == alone
    assert together[0] == together[3]
    assert len(set(together)) > 1


def test_a_draw_does_not_depend_on_the_batch_or_the_blocks(loaded):
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16, seed=3)
    prompts = PROMPTS[:12]
    params = [
        SamplingParams(
            max_tokens=6, temperature=(0.0, 0.8, 1.3)[i % 3], top_p=(1.0, 0.9)[i % 2], top_k=(0, 20)[i // 6], seed=i
        )
        for i in range(12)
    ]
    together = player.generate(prompts, params)
    assert player.generate(prompts, params, max_seqs=1) == together
    assert player.generate(prompts, params, chunk=11, max_seqs=5) == together
    other = [SamplingParams(max_tokens=6, temperature=1.3, seed=100 + i) for i in range(12)]
    assert player.generate(prompts, other) != together


def test_a_copied_block_carries_its_tokens(loaded):
    """Copy-on-write: two sequences share a block until one gets its own copy."""
    prompt = PROMPTS[3][:10]
    first = run(loaded, share(0, prompt, (3,)))[0]
    want = run(loaded, share(0, (first,), (), computed=10))[0]
    run(loaded, share(0, prompt, (3,)), released=(1,))
    got = run(loaded, share(1, (first,), (9,), computed=10), copies=(BlockCopy(3, 9),), released=(1,))
    assert got == (want,)


def test_an_iteration_without_draws_returns_nothing(loaded):
    assert run(loaded, share(0, PROMPTS[1][:8], (0,), seeds=()), released=(1,)) == ()
    assert run(loaded) == ()


def test_not_a_number_ends_one_request_alone(loaded):
    """A poisoned block gives -1 to its own sequence; neighbours, and the block's next owner, do not notice."""
    prompt = PROMPTS[4][:20]
    want = run(loaded, share(0, prompt, (5, 6)), released=(1,))[0]
    run(loaded, share(7, prompt, (1, 2), seeds=()))
    loaded.runner.storage.layers[0].keys[1].fill_(float("nan"))
    ids = run(loaded, share(7, (5,), (), computed=20), share(0, prompt, (5, 6)))
    assert ids == (-1, want)
    assert run(loaded, share(0, prompt, (1, 2)), share(8, (3,), (9,)), released=(1, 8))[0] == want
    following = run(loaded, share(0, (4,), (), computed=20), share(8, (3,), (), computed=1), released=())
    assert -1 not in following


def test_a_mask_holds_for_its_rows_only(tmp_path):
    """The masked draw is the best of what is allowed; its neighbour draws as if alone."""
    torch.manual_seed(0)
    folder = llama(tmp_path)
    runner = load(folder).runner
    sequences = tuple(
        ScheduledSequence(
            index,
            index + 1,
            tuple(prompt),
            0,
            0,
            tuple(range(4 * index, 4 * index + 4)),
            greedy(1),
            (Sample(index, 0),),
        )
        for index, prompt in enumerate(([5, 6, 7], [8, 9]))
    )
    theirs = oracle(folder)
    logits = [logits_of(theirs, list(item.token_ids))[-1] for item in sequences]
    allowed = torch.argsort(logits[0], descending=True)[[3, 7]].tolist()
    masks = FixedMasks([0, -1], [allowed], len(logits[0]))
    drawn = runner.launch(IterationPlan(sequences, masks=masks)).wait().token_ids
    assert drawn == (allowed[0], int(logits[1].argmax()))


def test_masks_are_waited_for_when_the_forward_pass_has_been_launched(tmp_path, monkeypatch):
    """So they are computed while it runs."""
    runner, order = load(llama(tmp_path)).runner, []
    compute_logits = runner.replays._model.compute_logits

    class Masks(FixedMasks):
        def wait(self):
            order.append("masks")
            return super().wait()

    def noting(hidden):
        order.append("logits")
        return compute_logits(hidden)

    monkeypatch.setattr(runner.replays._model, "compute_logits", noting)
    sequence = ScheduledSequence(0, 1, (3, 1, 4), 0, 0, (0,), greedy(4), (Sample(0, 0),))
    masks = Masks([0], [[5]], runner.replays._eager._vocab_size)
    assert runner.launch(IterationPlan((sequence,), masks=masks)).wait().token_ids == (5,)
    assert order == ["logits", "masks"]


@pytest.mark.parametrize("fails_in", ["launch", "wait"])
@pytest.mark.parametrize("device", DEVICES)
def test_after_a_fault_nothing_is_told_of_transfers(fails_in, device, tmp_path, monkeypatch):
    """Their requests have ended with it; somebody may have their blocks by the time that the next result comes."""
    runner = load(llama(tmp_path), swap_bytes=1 << 20, device=device, enforce_eager=True).runner
    item = ScheduledSequence(0, 1, (3, 1, 4), 0, 0, (0,), greedy(4), (Sample(0, 0),))
    runner.launch(IterationPlan((item,), transfers=(Transfer(1, True, (1,), (0,)),)))
    faulty = IterationPlan((item,), transfers=(Transfer(2, True, (2,), (1,)),))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="illegal"):
        if fails_in == "launch":
            patch.setattr(runner, "_compute", lambda *_: FaultyIds().wait())
        else:
            patch.setattr(runner, "_compute", lambda *_: Outputs(FaultyIds()))
        runner.launch(faulty).wait()
    after = runner.launch(IterationPlan((item,), transfers=(Transfer(3, False, (1,), (0,)),))).wait()
    later = runner.launch(IterationPlan((), awaits_transfer=True)).wait()
    assert [finished.transfer_id for finished in (*after.finished_transfers, *later.finished_transfers)] == [3]


def test_after_a_fault_the_device_has_the_blocks_of_those_who_were_not_in_the_plan(tmp_path, monkeypatch):
    """What the plan before has told of them was to go to the device with the one that failed."""
    runner = load(llama(tmp_path)).runner
    table = DeviceBlockTable(runner._rows, torch.device("cpu"))
    first, second = (ScheduledSequence(i, i + 1, (3, 1), 0, 0, (i + 1,), greedy(4), (Sample(i, 0),)) for i in range(2))
    runner.launch(IterationPlan((first,)))

    def fail(*_: object) -> None:
        table.take_changes(100)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="memory"):
        patch.setattr(runner._forward_pass, "compute", fail)
        runner.launch(IterationPlan((second,)))
    table.take_changes(0)
    assert table.tensor.tolist() == runner._rows.block_table.tolist()
    assert (table.tensor == 1).any()


@pytest.mark.parametrize("enforce_eager", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_a_step_is_timed_where_the_device_has_a_clock(device, enforce_eager, tmp_path):
    runner = load(llama(tmp_path), device=device, enforce_eager=enforce_eager).runner
    item = ScheduledSequence(0, 1, (3, 1, 4), 0, 0, (0,), greedy(4), (Sample(0, 0),))
    decode = ScheduledSequence(0, 1, (5,), 3, 1, (), greedy(4), (Sample(0, 0),))
    for plan in (IterationPlan((item,)), IterationPlan((decode,))):
        began_s = time.perf_counter()
        compute_s = runner.launch(plan).wait().compute_s
        took_s = time.perf_counter() - began_s
        assert compute_s is None if device == "cpu" else 0 < compute_s < took_s
    assert runner.launch(IterationPlan((), released=(1,))).wait().compute_s is None, "nothing was computed"


def test_a_fault_of_the_device_is_told_by_who_waits_for_the_result():
    storage = KvStorage(KvLayout(1, 1, 8, 4, torch.float32), 2, torch.device("cpu"))
    transfer = KvTransfer(storage, PlainHostBlocks(storage.layout, 0, pinned=False))
    launched = LaunchedIteration(Outputs(FaultyIds()), transfer, awaits_transfer=False)
    assert launched.is_done()
    with pytest.raises(RuntimeError, match="illegal"):
        launched.wait()


def test_decodes_that_go_on_are_looked_for_in_all_graphs_before_columns_are_made_of_a_step(loaded):
    """Of steps with adapters, or that somebody asks to be deterministic, too."""
    runner = loaded.runner
    ways = runner.replays._graph_ways([StepGraphs.__new__(StepGraphs) for _ in range(3)])
    assert [isinstance(way, SameDecodesAgain) for way in ways] == [True] * 3 + [False] * 9
