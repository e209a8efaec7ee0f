"""A step run kernel by kernel: it takes every plan, and is the plain twin of all other ways.

Draws are made all at once, or in parts if their logits do not fit into the device's memory. The cut changes nothing: a
draw depends only on its own row, parameters, seed and position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from kernels.token_logprobs import TokenLogprobs
from service.core.grammar import TokenMasks
from service.models.causal_lm import CausalLM
from service.runner.batch_columns import Int64Array
from service.runner.device_copies import to_device
from service.runner.drawn_ids import DrawnIds
from service.runner.forward_pass import ForwardPass
from service.runner.halving import in_halves
from service.runner.logprobs import DrawLogprobs, score_prompts
from service.runner.pooling import pool
from service.runner.sampling_rows import SamplingRows
from service.runner.selective_batching import FlatBatch, has_filters
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Outputs, PendingTokenIds, Step
from service.sampling.sampler import SamplingBatch, sample
from service.sampling.sampling_extras import Drawn, SamplingExtras, TokenBitmask, draw
from service.sampling.vocab_shard import VocabShard


class EagerStep:
    """A StepWay. Ways that compute only the hidden states or logits differently use `begin` and `draw`."""

    def __init__(
        self,
        model: CausalLM,
        forward_pass: ForwardPass,
        rows: SequenceRows,
        sampling_rows: SamplingRows,
        drawn: DrawnIds,
        vocab_size: int,
        device: torch.device,
        shard: VocabShard | None,
    ) -> None:
        self._model = model
        self._forward_pass = forward_pass
        self._rows = rows
        self._sampling_rows = sampling_rows
        self._drawn = drawn
        self._vocab_size = vocab_size
        self._device = device
        self._shard = shard

    def takes(self, step: Step) -> bool:
        return True

    def compute(self, step: Step) -> Outputs:
        batch, planned, tensors = step.batch, step.columns, self.begin(step)
        invariance = self._forward_pass.row_invariance
        if not step.reads_prompts:
            return self.draw_from(self._forward_pass.of_logit_rows(planned, batch, tensors), step, tensors)
        hidden = self._forward_pass.of_all_tokens(planned, batch, tensors)
        prompt_logprobs = score_prompts(
            step.plan.scheduled,
            batch,
            hidden,
            self._whole_logits,
            self._vocab_size,
            self._device,
            one_by_one=invariance.draws_one_by_one,
        )
        outputs = self.draw_from(hidden.index_select(0, tensors["logit_rows"]), step, tensors)
        pooled = pool(step.plan.scheduled, batch, hidden, self._device)
        return replace(outputs, prompt_logprobs=prompt_logprobs, pooled=pooled)

    def begin(self, step: Step) -> dict[str, Tensor]:
        """Copy the batch's arrays to the device, fill in pending ids, add the received hidden states, and update what
        is remembered for draws."""
        batch = step.batch
        self._forward_pass.row_invariance.want(step.is_deterministic)
        tensors = step.begin(self._device)
        self._drawn.grow(self._rows.num_rows)
        if batch.has_pending:
            self._drawn.fill_in(tensors["token_ids"], tensors["rows"][: batch.num_decode])
        if step.received is not None:
            tensors["received"] = step.received
        if not batch.is_plain:
            self._sampling_rows.update(step.plan.scheduled, step.columns, batch, tensors["token_ids"])
        return tensors

    def draw_from(self, hidden: Tensor, step: Step, tensors: Mapping[str, Tensor]) -> Outputs:
        """hidden: of the batch's `logit_rows`, of which there may be none."""
        if not len(step.batch.logit_rows):
            return Outputs(PendingTokenIds(tensors["token_ids"], 0, step.turn))
        return self.draw(lambda first, stop: self._model.compute_logits(hidden[first:stop]), step, tensors)

    def _whole_logits(self, hidden: Tensor) -> Tensor:
        logits = self._model.compute_logits(hidden)
        return logits if self._shard is None else self._shard.whole(logits)

    def draw(self, logits_of: LogitsOf, step: Step, tensors: Mapping[str, Tensor]) -> Outputs:
        """Make all draws of the batch, at least one. tensors: from `begin`."""
        batch, asked = step.batch, list[int | None]()
        extras, asked_tokens = None, dict[int, tuple[int, ...]]()
        if not batch.is_plain:
            asked_tokens = self._sampling_rows.asked_tokens(batch)
            extras, asked = self._sampling_rows.extras(batch, asked_tokens)
        extras_of = cache(partial(with_grammar_masks, extras, step.plan.masks, self._device))
        of_draws = {name: tensors[name] for name in batch.draws}
        parameters = SamplingBatch(of_draws, is_greedy=not batch.draws["temperature"].any())
        if self._shard is not None:
            parameters = replace(parameters, is_unfiltered=not has_filters(batch.draws))
        one_by_one = self._forward_pass.row_invariance.draws_one_by_one
        drawn = draw_all(batch, logits_of, parameters, extras_of, self._shard, one_by_one=one_by_one)
        self._drawn.note(tensors["draw_rows"], drawn.token_ids)
        logprobs = None
        if drawn.logprobs is not None:
            logprobs = DrawLogprobs(drawn.logprobs, asked, asked_tokens, drawn.asked_logprobs)
        return Outputs(PendingTokenIds(drawn.token_ids, batch.num_draws, step.turn), logprobs)


def with_grammar_masks(
    extras: SamplingExtras | None, masks: TokenMasks | None, device: torch.device
) -> SamplingExtras | None:
    """Add a plan's grammar masks to the extras of the sampling parameters. Waits for the masks: call it after the
    forward pass has been launched."""
    if masks is None:
        return extras
    arrays = {"bits": np.asarray(masks.wait()), "rows": np.asarray(masks.rows, np.int32)}
    tensors = to_device(arrays, device)
    extras = extras or SamplingExtras()
    return replace(extras, bitmasks=(*extras.bitmasks, TokenBitmask(tensors["bits"], tensors["rows"])))


LogitsOf = Callable[[int, int], Tensor]
"""(first, stop) of a batch's `logit_rows` -> their logits [stop - first, vocab_size], which the caller may overwrite.
Called again for fewer rows after memory has run out."""

ExtrasOf = Callable[[], SamplingExtras | None]
"""The extras of all draws. Called after the logits have been launched, because it may wait for masks."""


def draw_all(
    batch: FlatBatch,
    logits_of: LogitsOf,
    parameters: SamplingBatch,
    extras_of: ExtrasOf,
    shard: VocabShard | None = None,
    *,
    one_by_one: bool = False,
) -> Drawn:
    """One id for each of the batch's N draws, N > 0. parameters: of the N draws. One row's logits may serve several
    draws (the n choices of a prompt). shard: of the vocabulary, if each rank has logits of a part. one_by_one: draw row
    by row, because torch's exp of a row may differ in the last bit beside others."""
    row_of = np.repeat(np.arange(len(batch.logit_rows)), batch.samples_per_row)

    def compute(first: int, stop: int) -> Drawn:
        logits = _logits(row_of[first:stop], logits_of)
        return _draw(logits, parameters, extras_of(), first, stop, shard)

    at_once = 1 if one_by_one else None
    drawn = in_halves(len(row_of), "draws", compute, at_once=at_once, may_cut=shard is None)
    return drawn[0] if len(drawn) == 1 else _joined(drawn)


def _logits(rows: Int64Array, logits_of: LogitsOf) -> Tensor:
    """[draws, vocab_size]: the logits of each draw, repeated where several draws share a row. rows: of each draw."""
    first, stop = int(rows[0]), int(rows[-1]) + 1
    logits = logits_of(first, stop)
    if len(rows) == stop - first:
        return logits
    return logits.index_select(0, to_device({"rows": rows - first}, logits.device)["rows"])


def _draw(
    logits: Tensor,
    parameters: SamplingBatch,
    extras: SamplingExtras | None,
    first: int,
    stop: int,
    shard: VocabShard | None,
) -> Drawn:
    if stop - first < len(parameters):
        parameters = parameters.part(first, stop)
        extras = None if extras is None else extras.part(first, stop)
    if extras is None:
        return Drawn(sample(logits, parameters, shard=shard))
    return draw(logits, parameters, extras, shard)


def _joined(drawn: list[Drawn]) -> Drawn:
    token_ids = torch.cat([part.token_ids for part in drawn])
    logprobs = [part.logprobs for part in drawn if part.logprobs is not None]
    asked = [part.asked_logprobs for part in drawn if part.asked_logprobs is not None]
    return Drawn(
        token_ids,
        TokenLogprobs(*map(torch.cat, zip(*logprobs, strict=True))) if logprobs else None,
        torch.cat(asked) if asked else None,
    )
