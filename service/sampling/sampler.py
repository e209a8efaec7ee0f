"""Logits to ids and log probabilities. The order of transforms, each with its rule in the kernel's file:

    log probabilities are of the logits as they come      kernels/token_logprobs.py
    1. penalties: repetition, frequency, presence         kernels/apply_penalties.py
    2. logit bias, and -inf for what is forbidden         kernels/apply_logit_bias.py
    3. bitmask of allowed tokens                          kernels/apply_token_bitmask.py
    4. temperature, top-k, min-p, top-p, draw             kernels/sample_tokens.py

What nobody in the batch asks for costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels.apply_logit_bias import apply_logit_bias
from kernels.apply_penalties import apply_penalties
from kernels.apply_token_bitmask import apply_token_bitmask
from kernels.greedy_tokens import greedy_tokens
from kernels.sample_tokens import sample_tokens
from kernels.token_logprobs import TokenLogprobs, token_logprobs


class NamedTensors(Protocol):
    """Tensors by name: a mapping, or fixed places on the device."""

    def __getitem__(self, name: str, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of N draws.

    temperature, top_p [N] fp32, top_k [N] int32: as in SamplingParams (0, 1 and 0 switch them off).
    seeds, positions [N] int64: key the draw; position is the new token's index in its sequence.
    is_greedy: every temperature is 0, known on the host, so that nothing else need be looked at.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seeds: Tensor
    positions: Tensor
    is_greedy: bool

    @classmethod
    def of(cls, tensors: NamedTensors, *, is_greedy: bool) -> SamplingBatch:
        """From a batch's arrays on the device, by their names in FlatBatch and DecodeRows."""
        return cls(
            temperature=tensors["temperature"],
            top_k=tensors["top_k"],
            top_p=tensors["top_p"],
            seeds=tensors["seeds"],
            positions=tensors["sample_positions"],
            is_greedy=is_greedy,
        )

    def part(self, first: int, stop: int) -> SamplingBatch:
        """Of those draws alone; if they are the first ones, in the same memory."""
        return SamplingBatch(
            _part(self.temperature, first, stop),
            _part(self.top_k, first, stop),
            _part(self.top_p, first, stop),
            _part(self.seeds, first, stop),
            _part(self.positions, first, stop),
            self.is_greedy,
        )


@dataclass(frozen=True, slots=True)
class Penalties:
    """token_counts [slots, V] int32, slots [N] int32 (-1: none), repetition, presence, frequency [N] fp32."""

    token_counts: Tensor
    slots: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


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
class SamplingExtras:
    """What some of N draws ask for beyond `SamplingBatch`; None where nobody does.

    min_p [N] fp32. bitmasks are applied one after the other.
    num_top: logprobs of the drawn tokens and of this many most probable ones.
    """

    penalties: Penalties | None = None
    bias: LogitBias | None = None
    bitmasks: tuple[TokenBitmask, ...] = ()
    min_p: Tensor | None = None
    num_top: int | None = None

    def part(self, first: int, stop: int) -> SamplingExtras:
        """Of those draws alone. Waits for the device if there is a bias."""
        penalties, bias = self.penalties, self.bias
        if penalties is not None:
            of_draws = (penalties.slots, penalties.repetition, penalties.presence, penalties.frequency)
            penalties = Penalties(penalties.token_counts, *(_part(tensor, first, stop) for tensor in of_draws))
        if bias is not None:
            is_part = (bias.rows >= first) & (bias.rows < stop)
            bias = LogitBias(bias.rows[is_part] - first, bias.token_ids[is_part], bias.values[is_part])
        return SamplingExtras(
            penalties,
            bias,
            tuple(TokenBitmask(mask.bitmask, _part(mask.mask_rows, first, stop)) for mask in self.bitmasks),
            None if self.min_p is None else _part(self.min_p, first, stop),
            self.num_top,
        )

    @property
    def changes_logits(self) -> bool:
        return self.penalties is not None or self.bias is not None or bool(self.bitmasks)


def _part(of_draws: Tensor, first: int, stop: int) -> Tensor:
    """At an address as of a whole tensor, which Triton has compiled for."""
    return of_draws[first:stop].clone() if first else of_draws[:stop]


@dataclass(frozen=True, slots=True)
class Drawn:
    """token_ids [N] int64; logprobs (fp32, of N rows) if some draw asked for them."""

    token_ids: Tensor
    logprobs: TokenLogprobs | None = None


def sample(logits: Tensor, batch: SamplingBatch, min_p: Tensor | None = None) -> Tensor:
    """logits [N, vocab_size] -> ids [N] int64; -1 where a row's logits are not finite.

    A draw depends on its row, its parameters, its seed and its position, never on its neighbours.
    """
    if batch.is_greedy:
        return greedy_tokens(logits)
    return sample_tokens(logits, batch.temperature, batch.top_k, batch.top_p, batch.seeds, batch.positions, min_p)


def draw(logits: Tensor, batch: SamplingBatch, extras: SamplingExtras) -> Drawn:
    """As `sample`, with all that can be asked for. Writes `logits` if something changes them."""
    raw = logits.clone() if extras.num_top is not None and extras.changes_logits else logits
    if (penalties := extras.penalties) is not None:
        apply_penalties(
            logits,
            penalties.token_counts,
            penalties.slots,
            penalties.repetition,
            penalties.presence,
            penalties.frequency,
        )
    if (bias := extras.bias) is not None:
        apply_logit_bias(logits, bias.rows, bias.token_ids, bias.values)
    for mask in extras.bitmasks:
        apply_token_bitmask(logits, mask.bitmask, mask.mask_rows)
    token_ids = sample(logits, batch, extras.min_p)
    if extras.num_top is None:
        return Drawn(token_ids)
    return Drawn(token_ids, token_logprobs(raw, token_ids, extras.num_top))
