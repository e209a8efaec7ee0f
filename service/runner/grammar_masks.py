"""The masks of a plan beside what the sampling parameters ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from service.core.grammar import TokenMasks
from service.runner.staging import to_device
from service.sampling.sampler import SamplingExtras, TokenBitmask


def with_grammar_masks(
    extras: SamplingExtras | None, masks: TokenMasks | None, device: torch.device
) -> SamplingExtras | None:
    """Waits for the masks: to be called when the forward pass has been launched."""
    if masks is None:
        return extras
    arrays = {"bits": np.asarray(masks.wait()), "rows": np.asarray(masks.rows, np.int32)}
    tensors = to_device(arrays, device)
    extras = extras or SamplingExtras()
    return replace(extras, bitmasks=(*extras.bitmasks, TokenBitmask(tensors["bits"], tensors["rows"])))
