"""Row-invariant steps: each row gets the same bits as it would alone, whatever else is in the batch.

There are two ways. If all of a model's operations compute each row by itself (`CausalLM.is_row_invariant`), a step is
computed as one batch: products sum in a fixed order, and so does attention, for a prompt's token as for a decode's.
Other models compute one token at a time, each alone: slow, but right whatever their operations do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from kernels.ordered_attention_decode import ordered_split_len
from service.layers.projection import Projection
from service.models.causal_lm import CausalLM


class RowInvariance:
    """Whether the step being launched must be row-invariant, and how that is done. Engine thread.

    `want` costs nothing between two steps of one kind; a change is passed on to every projection. max_model_len: most
    tokens of a sequence. plain_cache: keys and values are cached in the dtype they are computed in. is_wanted: for the
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
        """Whether the step's tokens and its draws are computed one at a time."""
        return self.is_wanted and not self.can_be_at_once

    @property
    def takes_all_as_prompts(self) -> bool:
        """Whether attention treats every sequence as a prompt: on a CPU."""
        return self._is_at_once and not self._is_gpu

    @property
    def split_len(self) -> int | None:
        """On a GPU, the length of the splits of a token's keys, whose partial results are combined in order
        (kernels/ordered_attention_decode.py); None: not split that way."""
        return self._split_len if self._is_at_once and self._is_gpu else None

    @property
    def draws_one_by_one(self) -> bool:
        """Whether draws are made one at a time: torch, which draws on a CPU, may round an exponential differently
        beside others."""
        return self.takes_one_by_one or self.takes_all_as_prompts

    @property
    def _is_at_once(self) -> bool:
        return self.is_wanted and self.can_be_at_once

    @cached_property
    def can_be_at_once(self) -> bool:
        return self._plain_cache and self._model.is_row_invariant

    def want(self, is_wanted: bool) -> None:
        """Set whether the steps from now on are row-invariant."""
        if is_wanted is self.is_wanted:
            return
        self.is_wanted = is_wanted
        if self.can_be_at_once:
            for projection in self._projections:
                projection.order_sums(is_wanted)

    @cached_property
    def _projections(self) -> Sequence[Projection]:
        return self._model.projections
