"""Rotary position tables, stretched over longer contexts if the model is (rope_config.py).

The frequencies follow transformers' formulas operation by operation, so that a model sees the angles that it was
trained with. Only the tables are made here; kernels/rotary_embedding.py rotates the heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from service.layers.layer import Layer
from service.layers.rope_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)


class RotaryEmbedding(Layer):
    """positions [T] int64 -> (cos, sin), each [T, rotary_dim] fp32: the rows of two tables.

    As kernels/rotary_embedding.py takes them: (c, c) and (-s, s), including the attention factor.

    `build` makes the tables on a device; there are none before.
    """

    _cos: Tensor
    _sin: Tensor

    def __init__(self, config: RopeConfig) -> None:
        super().__init__()
        self._config = config

    def build(self, num_positions: int, device: torch.device) -> None:
        angles = rotary_angles(self._config, num_positions)
        cos, sin = (turn(angles) * self._config.attention_factor for turn in (torch.cos, torch.sin))
        self._cos = torch.cat((cos, cos), dim=-1).to(device)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device)

    @property
    def num_positions(self) -> int:
        """The tables have rows for positions below this."""
        return self._cos.shape[0]

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def rotary_angles(config: RopeConfig, num_positions: int) -> Tensor:
    """[num_positions, rotary_dim / 2] fp32: position times frequency, on the CPU."""
    positions = torch.arange(num_positions, device="cpu", dtype=torch.float32)
    scaling = config.scaling
    if isinstance(scaling, DynamicScaling):
        return positions[:, None] * _dynamic_frequencies(config, scaling, positions)
    if isinstance(scaling, LongRopeScaling):
        return positions[:, None] * _longrope_frequencies(config, scaling, num_positions)
    return positions[:, None] * _frequencies(config)


def _frequencies(config: RopeConfig) -> Tensor:
    match config.scaling:
        case None:
            return _base_frequencies(config)
        case LinearScaling(factor):
            return _base_frequencies(config) / factor
        case Llama3Scaling() as scaling:
            return _llama3_frequencies(config, scaling)
        case YarnScaling() as scaling:
            return _yarn_frequencies(config, scaling)
        case DynamicScaling() | LongRopeScaling():
            raise AssertionError("depends on the positions")


def _exponents(config: RopeConfig) -> Tensor:
    return torch.arange(0, config.rotary_dim, 2, device="cpu", dtype=torch.float32) / config.rotary_dim


def _base_frequencies(config: RopeConfig) -> Tensor:
    return 1.0 / (config.theta ** _exponents(config))


def _dynamic_frequencies(config: RopeConfig, scaling: DynamicScaling, positions: Tensor) -> Tensor:
    """[positions, rotary_dim / 2]: position p is rotated as the last one of a sequence of length p + 1.

    So a key's angle depends only on its position, and the key may stay in the cache. transformers computes the same for
    a sequence that grows token by token; it rotates a prompt longer than the trained length by the prompt's whole
    length.
    """
    dim, trained = config.rotary_dim, scaling.original_max_positions
    length = (positions + 1).clamp(min=trained)
    stretch = scaling.factor * length / trained - (scaling.factor - 1)
    base = config.theta * stretch ** (dim / (dim - 2))
    return 1.0 / (base[:, None] ** _exponents(config))


def _longrope_frequencies(config: RopeConfig, scaling: LongRopeScaling, num_positions: int) -> Tensor:
    """All sequences use the same factors, chosen by how long a sequence may become, so that a key may stay in the
    cache. vLLM does the same. transformers uses the short factors while a sequence is short."""
    factors = scaling.long_factors if num_positions > scaling.original_max_positions else scaling.short_factors
    stretch = torch.tensor(factors, device="cpu", dtype=torch.float32)
    return 1.0 / (stretch * config.theta ** _exponents(config))


def _llama3_frequencies(config: RopeConfig, scaling: Llama3Scaling) -> Tensor:
    frequencies = _base_frequencies(config)
    trained, low, high = scaling.original_max_positions, scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = 2 * math.pi / frequencies
    ramp = (trained / wavelength - low) / (high - low)
    slowed = frequencies / scaling.factor
    blended = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
    is_low, is_high = wavelength > trained / low, wavelength < trained / high
    return torch.where(is_low, slowed, torch.where(is_high, frequencies, blended))


def _yarn_frequencies(config: RopeConfig, scaling: YarnScaling) -> Tensor:
    dim = config.rotary_dim
    powers = config.theta ** _exponents(config)
    low, high = _yarn_range(config, scaling)
    ramp = ((torch.arange(dim // 2, device="cpu", dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return (1.0 / (scaling.factor * powers)) * (1 - kept) + (1.0 / powers) * kept


def _yarn_range(config: RopeConfig, scaling: YarnScaling) -> tuple[float, float]:
    """The dimensions between which the ramp from kept to interpolated frequencies runs."""

    def dimension_at(num_rotations: float) -> float:
        wavelength = scaling.original_max_positions / (num_rotations * 2 * math.pi)
        return config.rotary_dim * math.log(wavelength) / (2 * math.log(config.theta))

    round_down: Callable[[float], float] = math.floor if scaling.truncate else float
    round_up: Callable[[float], float] = math.ceil if scaling.truncate else float
    low = max(round_down(dimension_at(scaling.beta_fast)), 0)
    high = min(round_up(dimension_at(scaling.beta_slow)), config.rotary_dim - 1)
    return low, high + 0.001 if low == high else high
