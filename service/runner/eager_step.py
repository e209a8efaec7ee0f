"""A step kernel by kernel, by tensors made for it: the way that takes every plan, and the twin of all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from service.core.grammar import TokenMasks
from service.models.causal_lm import CausalLM
from service.runner.drawn_ids import DrawnIds
from service.runner.draws import LogitsOf, draw_all
from service.runner.forward_pass import ForwardPass
from service.runner.launched_iteration import Outputs
from service.runner.logprobs import DrawLogprobs, score_prompts
from service.runner.pooling import pool
from service.runner.sampling_rows import SamplingRows
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import PendingTokenIds, to_device
from service.runner.step_ways import Step
from service.sampling.sampler import SamplingBatch, SamplingExtras, TokenBitmask
from service.sampling.vocab_shard import VocabShard


class EagerStep:
    """A StepWay. Ways that compute the hidden states or the logits otherwise use its beginning and its end."""

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
        """The batch's arrays on the device, pending ids filled in, and what was received; what is remembered for draws
        is up to date."""
        batch = step.batch
        self._forward_pass.row_invariance.want(step.is_deterministic)
        step.turn.begins()
        tensors = to_device(batch.arrays(), self._device, step.turn)
        self._drawn.grow(self._rows.num_rows)
        if batch.has_pending:
            self._drawn.fill_in(tensors["token_ids"], tensors["rows"][: batch.num_decode])
        if step.received is not None:
            tensors["received"] = step.received
        if not batch.is_plain:
            self._sampling_rows.update(step.plan.scheduled, step.columns, batch, tensors["token_ids"])
        return tensors

    def draw_from(self, hidden: Tensor, step: Step, tensors: Mapping[str, Tensor]) -> Outputs:
        """hidden: of the batch's `logit_rows`, perhaps none."""
        if not len(step.batch.logit_rows):
            return Outputs(PendingTokenIds(tensors["token_ids"], 0, step.turn))
        return self.draw(lambda first, stop: self._model.compute_logits(hidden[first:stop]), step, tensors)

    def _whole_logits(self, hidden: Tensor) -> Tensor:
        logits = self._model.compute_logits(hidden)
        return logits if self._shard is None else self._shard.whole(logits)

    def draw(self, logits_of: LogitsOf, step: Step, tensors: Mapping[str, Tensor]) -> Outputs:
        """All draws of the batch, at least one. tensors: by `begin`."""
        batch, asked = step.batch, list[int | None]()
        extras, asked_tokens = None, dict[int, tuple[int, ...]]()
        if not batch.is_plain:
            asked_tokens = self._sampling_rows.asked_tokens(batch)
            extras, asked = self._sampling_rows.extras(batch, asked_tokens)
        extras_of = cache(partial(with_grammar_masks, extras, step.plan.masks, self._device))
        of_draws = {name: tensors[name] for name in batch.draws}
        parameters = SamplingBatch(of_draws, is_greedy=not batch.draws["temperature"].any())
        if self._shard is not None:
            parameters = replace(parameters, is_unfiltered=_is_unfiltered(batch))
        one_by_one = self._forward_pass.row_invariance.draws_one_by_one
        drawn = draw_all(batch, logits_of, parameters, extras_of, self._shard, one_by_one=one_by_one)
        self._drawn.note(tensors["draw_rows"], drawn.token_ids)
        logprobs = None
        if drawn.logprobs is not None:
            logprobs = DrawLogprobs(drawn.logprobs, asked, asked_tokens, drawn.asked_logprobs)
        return Outputs(PendingTokenIds(drawn.token_ids, batch.num_draws, step.turn), logprobs)


def _is_unfiltered(batch: FlatBatch) -> bool:
    return not batch.draws["top_k"].any() and bool((batch.draws["top_p"] >= 1).all())


def with_grammar_masks(
    extras: SamplingExtras | None, masks: TokenMasks | None, device: torch.device
) -> SamplingExtras | None:
    """The masks of a plan beside what the sampling parameters ask for. Waits for them: to be called when the forward
    pass has been launched."""
    if masks is None:
        return extras
    arrays = {"bits": np.asarray(masks.wait()), "rows": np.asarray(masks.rows, np.int32)}
    tensors = to_device(arrays, device)
    extras = extras or SamplingExtras()
    return replace(extras, bitmasks=(*extras.bitmasks, TokenBitmask(tensors["bits"], tensors["rows"])))
