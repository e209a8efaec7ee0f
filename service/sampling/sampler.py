"""Logits to ids and log probabilities. The order of transforms, each with its rule in the kernel's file:

    log probabilities are of the logits as they come      kernels/token_logprobs.py
    1. penalties: repetition, frequency, presence         kernels/apply_penalties.py
    2. logit bias, and -inf for what is forbidden         kernels/apply_logit_bias.py
    3. bitmask of allowed tokens                          kernels/apply_token_bitmask.py
    4. temperature, top-k, min-p, top-p, draw             kernels/sample_tokens.py

What no draw of the batch asks for costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kernels.apply_logit_bias import apply_logit_bias
from kernels.apply_penalties import apply_penalties
from kernels.apply_token_bitmask import apply_token_bitmask
from kernels.greedy_tokens import greedy_tokens
from kernels.sample_tokens import sample_tokens
from kernels.token_logprobs import TokenLogprobs, token_logprobs
from service.sampling.logprobs import asked_logprobs
from service.sampling.vocab_shard import VocabShard


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of N draws.

    columns: [N] each, by name. temperature, top_p fp32, top_k int32: as in SamplingParams (0, 1 and 0 switch them off).
    seeds, sample_positions int64: key the draw; the position is the new token's index in its sequence. What
    SamplingExtras needs besides: min_p, repetition_penalty, presence_penalty, frequency_penalty fp32.
    is_greedy: every temperature is 0, known on the host, so that nothing else need be looked at.
    is_unfiltered: likewise, no draw has top-k or top-p; False where the host does not know.
    """

    columns: Mapping[str, Tensor]
    is_greedy: bool
    is_unfiltered: bool = False

    def __len__(self) -> int:
        return len(self.columns["seeds"])

    def part(self, first: int, stop: int) -> SamplingBatch:
        """Of those draws alone; if they are the first ones, in the same memory."""
        return replace(self, columns={name: _part(c, first, stop) for name, c in self.columns.items()})


@dataclass(frozen=True, slots=True)
class Penalties:
    """token_counts [slots, V] int32, slots [N] int32 (-1: none)."""

    token_counts: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class LogitBias:
    """rows, token_ids [E] int32, values [E] fp32, -inf to forbid; no pair of row and token twice."""

    rows: Tensor
    token_ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class TokenBitmask:
    """bitmask [masks, ceil(V / 32)] int32, mask_rows [N] int32 (-1: all is allowed)."""

    bitmask: Tensor
    mask_rows: Tensor


@dataclass(frozen=True, slots=True)
class AskedTokens:
    """rows [M] int64, ascending; token_ids [M, K] int64: whose log probabilities those draws ask for."""

    rows: Tensor
    token_ids: Tensor

    def part(self, first: int, stop: int) -> AskedTokens | None:
        """Of those draws alone; None where none of them asks. Waits for the device."""
        is_part = (self.rows >= first) & (self.rows < stop)
        return AskedTokens(self.rows[is_part] - first, self.token_ids[is_part]) if is_part.any() else None


@dataclass(frozen=True, slots=True)
class SamplingExtras:
    """What some of N draws ask for beyond `SamplingBatch`; None where none does.

    has_min_p: some draw has one. bitmasks are applied one after the other.
    num_top: logprobs of the drawn tokens and of this many most probable ones. asked: of these tokens; then num_top is
    not None.
    """

    penalties: Penalties | None = None
    bias: LogitBias | None = None
    bitmasks: tuple[TokenBitmask, ...] = ()
    has_min_p: bool = False
    num_top: int | None = None
    asked: AskedTokens | None = None

    def part(self, first: int, stop: int) -> SamplingExtras:
        """Of those draws alone. Waits for the device if there is a bias, or tokens are asked for."""
        penalties, bias = self.penalties, self.bias
        if penalties is not None:
            penalties = Penalties(penalties.token_counts, _part(penalties.slots, first, stop))
        if bias is not None:
            is_part = (bias.rows >= first) & (bias.rows < stop)
            bias = LogitBias(bias.rows[is_part] - first, bias.token_ids[is_part], bias.values[is_part])
        return SamplingExtras(
            penalties,
            bias,
            tuple(TokenBitmask(mask.bitmask, _part(mask.mask_rows, first, stop)) for mask in self.bitmasks),
            self.has_min_p,
            self.num_top,
            None if self.asked is None else self.asked.part(first, stop),
        )

    @property
    def changes_logits(self) -> bool:
        return self.penalties is not None or self.bias is not None or bool(self.bitmasks)


def _part(of_draws: Tensor, first: int, stop: int) -> Tensor:
    """At an address as of a whole tensor, which Triton has compiled for."""
    return of_draws[first:stop].clone() if first else of_draws[:stop]


@dataclass(frozen=True, slots=True)
class Drawn:
    """token_ids [N] int64; logprobs (fp32, of N rows) if some draw asked for them. asked_logprobs [M, K]: of
    `AskedTokens`."""

    token_ids: Tensor
    logprobs: TokenLogprobs | None = None
    asked_logprobs: Tensor | None = None


def sample(logits: Tensor, batch: SamplingBatch, *, has_min_p: bool = False, shard: VocabShard | None = None) -> Tensor:
    """logits [N, vocab_size] -> ids [N] int64; -1 where a row's logits are not finite.

    A draw depends on its row, its parameters, its seed and its position, never on its neighbours. shard: whose the
    logits are; None: those of all ids. The others' are asked for where a filter needs them.
    """
    if shard is not None:
        if batch.is_greedy or (batch.is_unfiltered and not has_min_p):
            return shard.sample(logits, batch.columns, is_greedy=batch.is_greedy)
        logits = shard.whole(logits)
    if batch.is_greedy:
        return greedy_tokens(logits)
    columns = batch.columns
    return sample_tokens(
        logits,
        columns["temperature"],
        columns["top_k"],
        columns["top_p"],
        columns["seeds"],
        columns["sample_positions"],
        columns["min_p"] if has_min_p else None,
    )


def draw(logits: Tensor, batch: SamplingBatch, extras: SamplingExtras, shard: VocabShard | None = None) -> Drawn:
    """As `sample`, with all that can be asked for. Writes `logits` if something changes them."""
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
