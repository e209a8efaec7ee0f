"""The draws of an iteration: all at once, or in parts if their logits do not fit the device's memory.

Nothing of it depends on the cut: a draw depends on its own row, parameters, seed and position alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernels.token_logprobs import TokenLogprobs
from service.runner.batch_columns import Int64Array
from service.runner.halving import in_halves
from service.runner.selective_batching import FlatBatch
from service.runner.staging import to_device
from service.sampling.sampler import Drawn, SamplingBatch, SamplingExtras, draw, sample
from service.sampling.vocab_shard import VocabShard

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
    draws (the n choices of a prompt). shard: whose the logits are, where several ranks draw. one_by_one: torch may take
    an exponential beside others to another last bit than alone."""
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
