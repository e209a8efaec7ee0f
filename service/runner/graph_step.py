"""What a CUDA graph computes: a step over inputs at fixed places, from the embedding to the drawn ids."""

from __future__ import annotations

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


class StepOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size], of which these are a rank's (`CausalLM.compute_logits`).
    A graph's are overwritten by the next replay of any, and end in what padding drew. Where another stage draws they
    are the ids that came in, and for logits the hidden states [T, hidden_size] that go out."""

    token_ids: Tensor
    logits: Tensor


class GraphStep:
    """In two parts, because a graph of many tokens holds the first alone. deterministic: its rows have the bits that
    they have alone, where such steps are batched."""

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

    def draw(self, hidden: Tensor, inputs: StepInputs, num_draws: int) -> StepOutputs:
        """What is left, for the first `num_draws` of these rows."""
        if not is_last(self._model.stage):
            return StepOutputs(inputs.token_ids, hidden)
        self._forward_pass.row_invariance.want(self.deterministic)
        num_rows = rows_of_logits(num_draws, len(hidden))
        logits = self._model.compute_logits(hidden[:num_rows])[:num_draws]
        token_ids = sample(logits, inputs.sampling.part(0, num_draws), shard=self._shard)
        self._drawn.note(inputs.draw_rows[:num_draws], token_ids)
        return StepOutputs(token_ids, logits)

    def whole(self, inputs: StepInputs) -> StepOutputs:
        return self.draw(self.hidden(inputs), inputs, len(inputs.draw_rows))
