"""What a CUDA graph computes: a step over inputs at fixed places, from the embedding to the drawn ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from service.layers.pipeline_stage import is_first, is_last
from service.models.causal_lm import CausalLM
from service.runner.batch_columns import Array, BatchColumns
from service.runner.drawn_ids import DrawnIds
from service.runner.forward_pass import ForwardPass
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize, rows_of_logits
from service.runner.selective_batching import has_filters
from service.runner.step_inputs import StepForm, StepInputs
from service.sampling.sampler import sample
from service.sampling.vocab_shard import VocabShard

WHOLE_BYTES = 1 << 21
"""Logits of all ranks, up to this size, are gathered whole: that takes less time than drawing by shard. It is 8 rows of
128k ids in bf16. Estimated from launches, not measured yet: some fifteen small kernels and two exchanges, against one
exchange of some 10 us."""


class StepOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size], which are this rank's part (`CausalLM.compute_logits`). A
    graph's outputs end with those of padding, and the next replay of any graph overwrites them. Where another stage
    draws, token_ids are the ids that came in, and logits the hidden states [T, hidden_size] that go out."""

    token_ids: Tensor
    logits: Tensor


class GraphStep:
    """A step in two parts, `hidden` and `draw`, because a graph of many tokens holds only the first. deterministic: its
    rows get the same bits as they would alone, where such steps are batched.

    If each rank has logits of a part of the vocabulary, draws without filters need little of the other ranks' logits,
    and draws with filters need them all. So `whole` draws without filters and `filtered` draws again with them; unless
    the logits are so few that they are always gathered.
    """

    def __init__(
        self,
        model: CausalLM,
        forward_pass: ForwardPass,
        drawn: DrawnIds,
        shard: VocabShard | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        self.deterministic = deterministic
        self.is_stage = model.stage.size > 1
        self._model = model
        self._forward_pass = forward_pass
        self._drawn = drawn
        self._shard = shard
        self._row_bytes = 0 if shard is None else shard.vocab_size * model.dtype.itemsize

    def inputs(
        self, size: GraphSize, block_table: Tensor, block_size: int, columns: BatchColumns, num_adapters: int
    ) -> GraphInputs:
        """GraphInputs of such a step."""
        self._forward_pass.row_invariance.want(self.deterministic)
        split_len, model, received = self._forward_pass.row_invariance.split_len, self._model, None
        if not is_first(model.stage):
            received = torch.zeros(size.num_tokens, model.hidden_size, dtype=model.dtype, device=block_table.device)
        form = StepForm(split_len, received, reads_all=not is_last(model.stage))
        return GraphInputs(size, block_table, block_size, columns, num_adapters, form)

    def hidden(self, inputs: StepInputs) -> Tensor:
        """The hidden states [N, hidden_size] of the rows that draw; of all tokens where another stage draws."""
        self._forward_pass.row_invariance.want(self.deterministic)
        self._drawn.fill_in(inputs.token_ids, inputs.decode_rows)
        attention = inputs.attention.afresh()
        # A copy: the model overwrites its input, and in padding rows that would add up from replay to replay.
        received = None if inputs.received is None else inputs.received.clone()
        return self._forward_pass.compute(inputs.token_ids, inputs.positions, attention, inputs.adapters, received)

    def draw(self, hidden: Tensor, inputs: StepInputs, num_draws: int, *, has_filters: bool = True) -> StepOutputs:
        """The rest of the step, for the first `num_draws` rows of `hidden`. has_filters: of sharded draws, whether some
        draw filters."""
        if not is_last(self._model.stage):
            return StepOutputs(inputs.token_ids, hidden)
        self._forward_pass.row_invariance.want(self.deterministic)
        num_rows = rows_of_logits(num_draws, len(hidden))
        logits = self._model.compute_logits(hidden[:num_rows])[:num_draws]
        return self._drawn_of(logits, inputs, num_draws, has_filters=has_filters)

    def has_filters(self, draws: Mapping[str, Array]) -> bool:
        """Whether some draw filters; computed only if draws are sharded."""
        return self._shard is not None and has_filters(draws)

    def whole(self, inputs: StepInputs) -> StepOutputs:
        num_draws = len(inputs.draw_rows)
        return self.draw(self.hidden(inputs), inputs, num_draws, has_filters=not self.draws_again(num_draws))

    def draws_again(self, num_draws: int) -> bool:
        """Whether `whole` leaves filters to `filtered` for so many draws. The same on every rank."""
        return num_draws * self._row_bytes > WHOLE_BYTES

    def filtered(self, inputs: StepInputs, outputs: StepOutputs) -> StepOutputs:
        """Draw again from the outputs of a sharded `whole`, now with filters."""
        return self._drawn_of(outputs.logits, inputs, len(inputs.draw_rows), has_filters=True)

    def _drawn_of(self, logits: Tensor, inputs: StepInputs, num_draws: int, *, has_filters: bool) -> StepOutputs:
        sampling = inputs.sampling.part(0, num_draws)
        if self._shard is not None:
            sampling = replace(sampling, is_unfiltered=not has_filters)
        token_ids = sample(logits, sampling, shard=self._shard)
        self._drawn.note(inputs.draw_rows[:num_draws], token_ids)
        return StepOutputs(token_ids, logits)
