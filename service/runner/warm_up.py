"""Small iterations of every kind, run before serving."""

from __future__ import annotations

from dataclasses import replace

from service.core.block_moves import BlockCopy
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.runner.graph_sizes import GraphSize
from service.runner.model_runner import ModelRunner

_MANY_TOKENS = GraphSize(512, 1)
"""More tokens than kernels/lora_tiles.py counts as few: the adapters' kernels are compiled a second time for them."""


def warm_up(runner: ModelRunner) -> None:
    """Compute small iterations, so that the first request finds all kernels compiled and loaded.

    Call it while no sequence is alive: it overwrites the first two blocks.
    """
    drawing = SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9)
    greedy = SamplingParams(max_tokens=2, temperature=0.0)
    for params in (greedy, drawing):
        _small_iteration(runner, 1, params)
    if runner.adapters is not None:
        _small_iteration(runner, 1, greedy, adapter_slot=1)  # the slot is empty, so it changes nothing
        if runner.device.type == "cuda":
            runner.replays.compute_padding(_MANY_TOKENS, adapters=True)
    if runner.device.type == "cuda":
        for count in sorted({min(2**i, runner.max_num_seqs) for i in range(11)}):
            _small_iteration(runner, count, drawing)  # the attention kernel differs by the number of sequences
        asking = replace(drawing, min_p=0.1, repetition_penalty=1.1, logit_bias=((0, 1.0),), num_logprobs=2)
        for params in (asking, replace(asking, temperature=0.0, allowed_token_ids=(0, 1))):
            _small_iteration(runner, 1, params)
    if runner.storage.num_blocks > 1:
        runner.launch(IterationPlan((), copies=(BlockCopy(0, 1),))).wait()


def _small_iteration(runner: ModelRunner, num_decodes: int, params: SamplingParams, adapter_slot: int = 0) -> None:
    """Run one iteration of a short prompt and `num_decodes` decodes, all in block 0."""
    rows = range(1, 2 + num_decodes)
    length = min(2, runner.storage.layout.block_size)
    past = Past((), length)
    decodes = [ScheduledSequence(-r, r, (0,), 0, 0, (0,), params, (Sample(-r, 0),), past) for r in rows[1:]]
    prompt = ScheduledSequence(-1, 1, (0,) * length, 0, 0, (0,), params, (Sample(-1, 0),), past)
    scheduled = tuple(item._replace(adapter_slot=adapter_slot) for item in (prompt, *decodes))
    for plan in (IterationPlan(scheduled), IterationPlan((), released=tuple(rows))):
        runner.launch(plan).wait()
