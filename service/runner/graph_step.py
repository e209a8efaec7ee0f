"""What a CUDA graph computes: a step over inputs at fixed places, from the embedding to the drawn ids."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from service.layers.pipeline_stage import is_first, is_last
from service.models.causal_lm import CausalLM
from service.runner.batch_columns import BatchColumns
from service.runner.forward_pass import ForwardPass
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize, rows_of_logits
from service.runner.sequence_rows import DrawnIds
from service.runner.step_inputs import StepInputs
from service.sampling.sampler import sample
from service.sampling.vocab_shard import VocabShard

WHOLE_BYTES = 1 << 21
"""Logits, of all ranks, that are gathered in less time than draws by shard take: 8 rows of 128k ids in bf16. By counts
of launches, not measured yet: some fifteen small kernels and two exchanges against one exchange of some 10 us."""


class StepOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size], of which these are a rank's (`CausalLM.compute_logits`).
    A graph's are overwritten by the next replay of any, and end in what padding drew. Where another stage draws they
    are the ids that came in, and for logits the hidden states [T, hidden_size] that go out."""

    token_ids: Tensor
    logits: Tensor


class GraphStep:
    """In two parts, because a graph of many tokens holds the first alone. deterministic: its rows have the bits that
    they have alone, where such steps are batched.

    Where ranks have a part of the vocabulary each, draws without filters need little of the others', and those with
    filters all their logits. A graph's step is drawn without, and `filtered` draws it again; unless its logits are so
    few that they are gathered always.
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
        self.is_sharded = shard is not None
        self._model = model
        self._forward_pass = forward_pass
        self._drawn = drawn
        self._shard = shard
        self._row_bytes = 0 if shard is None else shard.vocab_size * model.dtype.itemsize

    def inputs(
        self, size: GraphSize, block_table: Tensor, block_size: int, columns: BatchColumns, num_adapters: int
    ) -> GraphInputs:
        """Of such a step, as of GraphInputs."""
        self._forward_pass.row_invariance.want(self.deterministic)
        split_len, model, received = self._forward_pass.row_invariance.split_len, self._model, None
        if not is_first(model.stage):
            received = torch.zeros(size.num_tokens, model.hidden_size, dtype=model.dtype, device=block_table.device)
        reads_all = not is_last(model.stage)
        return GraphInputs(
            size, block_table, block_size, columns, num_adapters, split_len, received, reads_all=reads_all
        )

    def hidden(self, inputs: StepInputs) -> Tensor:
        """The hidden states [N, hidden_size] of the rows that draw; of all, where another stage draws."""
        self._forward_pass.row_invariance.want(self.deterministic)
        self._drawn.fill_in(inputs.token_ids, inputs.decode_rows)
        attention = inputs.attention.afresh()
        # A copy: the model overwrites what it gets, and in a replay's padding that would add up for ever.
        received = None if inputs.received is None else inputs.received.clone()
        return self._forward_pass.compute(inputs.token_ids, inputs.positions, attention, inputs.adapters, received)

    def draw(self, hidden: Tensor, inputs: StepInputs, num_draws: int, *, has_filters: bool = True) -> StepOutputs:
        """What is left, for the first `num_draws` of these rows. has_filters: of a sharded step, whether some draw
        filters."""
        if not is_last(self._model.stage):
            return StepOutputs(inputs.token_ids, hidden)
        self._forward_pass.row_invariance.want(self.deterministic)
        num_rows = rows_of_logits(num_draws, len(hidden))
        logits = self._model.compute_logits(hidden[:num_rows])[:num_draws]
        return self._drawn_of(logits, inputs, num_draws, has_filters=has_filters)

    def whole(self, inputs: StepInputs) -> StepOutputs:
        num_draws = len(inputs.draw_rows)
        return self.draw(self.hidden(inputs), inputs, num_draws, has_filters=not self.draws_again(num_draws))

    def draws_again(self, num_draws: int) -> bool:
        """Whether `whole` leaves filters to `filtered`, of so many draws. The same on every rank."""
        return num_draws * self._row_bytes > WHOLE_BYTES

    def filtered(self, inputs: StepInputs, outputs: StepOutputs) -> StepOutputs:
        """The outputs of `whole`, sharded, where some draw filters."""
        return self._drawn_of(outputs.logits, inputs, len(inputs.draw_rows), has_filters=True)

    def _drawn_of(self, logits: Tensor, inputs: StepInputs, num_draws: int, *, has_filters: bool) -> StepOutputs:
        sampling = inputs.sampling.part(0, num_draws)
        if self.is_sharded:
            sampling = replace(sampling, is_unfiltered=not has_filters)
        token_ids = sample(logits, sampling, shard=self._shard)
        self._drawn.note(inputs.draw_rows[:num_draws], token_ids)
        return StepOutputs(token_ids, logits)
