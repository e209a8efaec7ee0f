"""Steps whose rows have the bits that they have alone: by which company a request is computed changes nothing.

Two ways lead there. Models whose operations all compute a row by itself (`CausalLM.is_row_invariant`) compute a step at
once: products sum in one order, and so does attention, for a prompt's token as for a decode's. Others compute one token
after the other, each alone: slow, and right whatever their operations do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from kernels.ordered_attention_decode import ordered_split_len
from service.layers.projection import Projection
from service.models.causal_lm import CausalLM


class RowInvariance:
    """How a model computes the step that is being launched. Engine thread.

    Between two steps of one kind nothing is done; a change tells every projection. max_model_len: tokens that a
    sequence may have. plain_cache: keys and values are kept in the numbers that they are computed in. is_wanted: of the
    present step.
    """

    def __init__(self, model: CausalLM, device: torch.device, max_model_len: int, *, plain_cache: bool = True) -> None:
        self._model = model
        self._is_gpu = device.type == "cuda"
        self._split_len = ordered_split_len(max_model_len)
        self._plain_cache = plain_cache
        self.is_wanted = False

    @property
    def takes_one_by_one(self) -> bool:
        """Whether the step's tokens are to be computed one after the other, and its draws."""
        return self.is_wanted and not self.can_be_at_once

    @property
    def takes_all_as_prompts(self) -> bool:
        """Whether attention is to take every sequence as a prompt: on a CPU."""
        return self._is_at_once and not self._is_gpu

    @property
    def split_len(self) -> int | None:
        """Of which keys a token's attention begins anew, on a GPU (kernels/ordered_attention_decode.py); None: it does
        not."""
        return self._split_len if self._is_at_once and self._is_gpu else None

    @property
    def draws_one_by_one(self) -> bool:
        """Torch, which draws on a CPU, may take an exponential beside others to another last bit than alone."""
        return self.takes_one_by_one or self.takes_all_as_prompts

    @property
    def _is_at_once(self) -> bool:
        return self.is_wanted and self.can_be_at_once

    @cached_property
    def can_be_at_once(self) -> bool:
        return self._plain_cache and self._model.is_row_invariant

    def want(self, is_wanted: bool) -> None:
        """Of the steps from now on."""
        if is_wanted is self.is_wanted:
            return
        self.is_wanted = is_wanted
        if self.can_be_at_once:
            for projection in self._projections:
                projection.order_sums(is_wanted)

    @cached_property
    def _projections(self) -> Sequence[Projection]:
        return self._model.projections
