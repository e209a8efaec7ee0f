"""Draws with every sampling parameter, and log probabilities. The order of the transforms; each one's rule is in its
kernel's file:

    log probabilities: of the unchanged logits            kernels/token_logprobs.py
    1. penalties: repetition, frequency, presence         kernels/apply_penalties.py
    2. logit bias, and -inf for forbidden ids             kernels/apply_logit_bias.py
    3. bitmask of allowed tokens                          kernels/apply_token_bitmask.py
    4. temperature, top-k, min-p, top-p, draw             kernels/sample_tokens.py
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.apply_logit_bias import apply_logit_bias
from kernels.apply_penalties import apply_penalties
from kernels.apply_token_bitmask import apply_token_bitmask
from kernels.token_logprobs import TokenLogprobs, token_logprobs
from service.sampling.logprobs import asked_logprobs
from service.sampling.sampler import SamplingBatch, part_of, sample
from service.sampling.vocab_shard import VocabShard


@dataclass(frozen=True, slots=True)
class Penalties:
    """token_counts [slots, V] int32; slots [N] int32: the row of token_counts of each draw, -1: no penalties."""

    token_counts: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class LogitBias:
    """rows, token_ids [E] int32, values [E] fp32: added to logits[row, token_id]; -inf forbids. Pairs are unique."""

    rows: Tensor
    token_ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class TokenBitmask:
    """bitmask [masks, ceil(V / 32)] int32; mask_rows [N] int32: the mask of each draw, -1: everything is allowed."""

    bitmask: Tensor
    mask_rows: Tensor


@dataclass(frozen=True, slots=True)
class AskedTokens:
    """rows [M] int64, ascending: draws that ask for specific tokens; token_ids [M, K] int64: those tokens."""

    rows: Tensor
    token_ids: Tensor

    def part(self, first: int, stop: int) -> AskedTokens | None:
        """Those of draws first, ..., stop - 1; None if none of them asks. Waits for the device."""
        is_part = (self.rows >= first) & (self.rows < stop)
        return AskedTokens(self.rows[is_part] - first, self.token_ids[is_part]) if is_part.any() else None


@dataclass(frozen=True, slots=True)
class SamplingExtras:
    """What some of N draws ask for beyond `SamplingBatch`; None where none does.

    has_min_p: some draw has min_p. bitmasks: applied one after the other.
    num_top: return log probabilities of the drawn tokens and of this many most probable ones. asked: return those of
    these tokens, too; num_top must not be None then.
    """

    penalties: Penalties | None = None
    bias: LogitBias | None = None
    bitmasks: tuple[TokenBitmask, ...] = ()
    has_min_p: bool = False
    num_top: int | None = None
    asked: AskedTokens | None = None

    def part(self, first: int, stop: int) -> SamplingExtras:
        """The extras of draws first, ..., stop - 1. Waits for the device if there is a bias or `asked`."""
        penalties, bias = self.penalties, self.bias
        if penalties is not None:
            penalties = Penalties(penalties.token_counts, part_of(penalties.slots, first, stop))
        if bias is not None:
            is_part = (bias.rows >= first) & (bias.rows < stop)
            bias = LogitBias(bias.rows[is_part] - first, bias.token_ids[is_part], bias.values[is_part])
        return SamplingExtras(
            penalties,
            bias,
            tuple(TokenBitmask(mask.bitmask, part_of(mask.mask_rows, first, stop)) for mask in self.bitmasks),
            self.has_min_p,
            self.num_top,
            None if self.asked is None else self.asked.part(first, stop),
        )

    @property
    def changes_logits(self) -> bool:
        return self.penalties is not None or self.bias is not None or bool(self.bitmasks)


@dataclass(frozen=True, slots=True)
class Drawn:
    """token_ids [N] int64. logprobs: of N rows, fp32; None if no draw asked. asked_logprobs [M, K] fp32: those of
    `AskedTokens`."""

    token_ids: Tensor
    logprobs: TokenLogprobs | None = None
    asked_logprobs: Tensor | None = None


def draw(logits: Tensor, batch: SamplingBatch, extras: SamplingExtras, shard: VocabShard | None = None) -> Drawn:
    """As `sample`, with every parameter. Overwrites `logits` if `extras.changes_logits`."""
    if shard is not None and (extras.changes_logits or extras.num_top is not None):
        logits, shard = shard.whole(logits), None
    raw = logits.clone() if extras.num_top is not None and extras.changes_logits else logits
    if (penalties := extras.penalties) is not None:
        apply_penalties(
            logits,
            penalties.token_counts,
            penalties.slots,
            batch.columns["repetition_penalty"],
            batch.columns["presence_penalty"],
            batch.columns["frequency_penalty"],
        )
    if (bias := extras.bias) is not None:
        apply_logit_bias(logits, bias.rows, bias.token_ids, bias.values)
    for mask in extras.bitmasks:
        apply_token_bitmask(logits, mask.bitmask, mask.mask_rows)
    token_ids = sample(logits, batch, has_min_p=extras.has_min_p, shard=shard)
    if extras.num_top is None:
        return Drawn(token_ids)
    asked = None if extras.asked is None else asked_logprobs(raw, extras.asked.rows, extras.asked.token_ids)
    return Drawn(token_ids, token_logprobs(raw, token_ids, extras.num_top), asked)
