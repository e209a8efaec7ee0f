"""Hidden states: what is left out, and memory that runs out, changes no id. And what attention is told."""

from __future__ import annotations

import pytest
import torch

from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.device_copies import to_device
from service.runner.forward_pass import attention_inputs
from service.runner.sequence_rows import SequenceRows
from tests.models.checkpoints import gpt2, llama, mistral, opt, qwen3, random_prompts
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy
from tests.runner.plans import flat

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("save", [llama, mistral, qwen3, gpt2, opt])
def test_the_last_layer_computes_what_is_read_and_no_more(save, device, tmp_path, monkeypatch):
    """The rows of the whole layer's output. Every chunk's keys and values are kept, or the next one would show it."""
    loaded = load(save(tmp_path), device=device, enforce_eager=True)
    forward_pass, plain = loaded.runner._forward_pass, loaded.runner._forward_pass.of_logit_rows
    counts = []

    def compared(planned, batch, tensors):
        hidden = plain(planned, batch, tensors)
        whole = forward_pass.of_all_tokens(planned, batch, tensors)
        torch.testing.assert_close(hidden, whole.index_select(0, tensors["logit_rows"]), atol=1e-5, rtol=1e-4)
        counts.append((batch.num_tokens, len(hidden)))
        return hidden

    monkeypatch.setattr(forward_pass, "of_logit_rows", compared)
    PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(random_prompts(12, longest=60), greedy(5), chunk=17)
    assert any(0 < num_read < num_tokens for num_tokens, num_read in counts)


def test_one_row_of_a_prompt_goes_through_the_last_layer(tmp_path, monkeypatch):
    loaded = load(llama(tmp_path))
    counts = []
    for block in list(loaded.runner.replays._model.blocks)[-2:]:

        def counting(x, mlp=block.mlp):
            counts.append(len(x))
            return mlp(x)

        monkeypatch.setitem(vars(block), "mlp", counting)
    PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate([[1, 2, 3, 4, 5, 6, 7]], greedy(1))
    assert counts == [7, 1]


@pytest.mark.parametrize("largest", [40, 3, 1])
def test_memory_that_runs_out_changes_no_id(largest, tmp_path, monkeypatch):
    loaded = load(llama(tmp_path))
    prompts = random_prompts(10, longest=60)
    params = [SamplingParams(max_tokens=4, temperature=0.9 * (i % 2), seed=i) for i in range(10)]
    want = PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(prompts, params, chunk=33)
    model, sizes = loaded.runner.replays._model, []

    def forward(token_ids, *arguments):
        if len(token_ids) > largest:
            raise torch.OutOfMemoryError("injected")
        sizes.append(len(token_ids))
        return type(model).forward(model, token_ids, *arguments)

    monkeypatch.setattr(loaded.runner._forward_pass, "_model", forward)
    assert PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(prompts, params, chunk=33) == want
    assert max(sizes) <= largest


def test_one_token_that_does_not_fit_is_a_fault(tmp_path, monkeypatch):
    loaded = load(llama(tmp_path))

    def forward(*arguments):
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(loaded.runner._forward_pass, "_model", forward)
    with pytest.raises(torch.OutOfMemoryError):
        PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate([[1, 2, 3]], SamplingParams(max_tokens=1))


def share(sequence_id, num_tokens, computed, block_ids):
    return ScheduledSequence(
        sequence_id, sequence_id + 1, (9,) * num_tokens, computed, 0, block_ids, SamplingParams(max_tokens=1), ()
    )


def inputs(*shares):
    batch = flat(shares, SequenceRows(4, 8), 4)
    return attention_inputs(batch, to_device(batch.arrays(), torch.device("cpu")), 4)


def test_a_mixed_batch_has_both_parts():
    got = inputs(share(0, 3, 2, (7, 1)), share(1, 1, 5, (2, 3)), share(2, 2, 0, (4,)))
    assert got.decode.context_lens.tolist() == [6]
    assert got.decode.block_table.tolist() == [[2, 3]]
    assert got.prefill.context_lens.tolist() == [5, 2]
    assert got.prefill.query_starts.tolist() == [1, 4, 6]
    assert got.prefill.block_table[:, 0].tolist() == [7, 4]
    assert got.prefill.max_query_len == 3
    assert got.slots.slot_mapping.tolist() == [3 * 4 + 1, 7 * 4 + 2, 7 * 4 + 3, 1 * 4, 4 * 4, 4 * 4 + 1]
    assert got.slots.kept is None


def test_a_part_without_rows_is_absent():
    assert inputs(share(0, 1, 5, (2, 3))).prefill is None
    assert inputs(share(0, 2, 0, (2,))).decode is None
