"""The computation of a step at fixed places, without a wait for the device: what a CUDA graph captures."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from service.models.causal_lm import CausalLM
from service.runner.drawn_ids import DrawnIds
from service.runner.forward_pass import ForwardPass
from service.runner.graph_inputs import StepInputs
from service.runner.graph_sizes import rows_of_logits
from service.sampling.sampler import sample


class StepOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size]. A graph's are overwritten by the next replay of any, and
    end in what padding drew."""

    token_ids: Tensor
    logits: Tensor


class GraphStep:
    """In two parts, because a graph of many tokens holds the first alone."""

    def __init__(self, model: CausalLM, forward_pass: ForwardPass, drawn: DrawnIds) -> None:
        self._model = model
        self._forward_pass = forward_pass
        self._drawn = drawn

    def hidden(self, inputs: StepInputs) -> Tensor:
        """The hidden states [N, hidden_size] of the rows that draw."""
        self._drawn.fill_in(inputs.token_ids, inputs.decode_rows)
        return self._forward_pass.compute(inputs.token_ids, inputs.positions, inputs.attention.afresh())

    def draw(self, hidden: Tensor, inputs: StepInputs, num_draws: int) -> StepOutputs:
        """What is left, for the first `num_draws` of these rows."""
        num_rows = rows_of_logits(num_draws, len(hidden))
        logits = self._model.compute_logits(hidden[:num_rows])[:num_draws]
        token_ids = sample(logits, inputs.sampling.part(0, num_draws))
        self._drawn.note(inputs.draw_rows[:num_draws], token_ids)
        return StepOutputs(token_ids, logits)

    def whole(self, inputs: StepInputs) -> StepOutputs:
        return self.draw(self.hidden(inputs), inputs, len(inputs.draw_rows))
