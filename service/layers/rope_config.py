"""The parameters of rotary positions, and the ways to stretch them over longer contexts. Imports no torch, like every
model's config."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware base, growing with the length once it exceeds the trained one."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): interpolation by rotation count; `attention_factor` scales cos and sin."""

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): each frequency is divided by its own factor, from `long_factors` if contexts longer
    than the trained one are served. `attention_factor` scales cos and sin."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    attention_factor: float


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """theta: base of the frequencies. rotary_dim: how many dimensions of a head are rotated, even. scaling: None for
    none."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None
    attention_factor: float = field(init=False)

    def __post_init__(self) -> None:
        scaling = self.scaling
        factor = scaling.attention_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0
        object.__setattr__(self, "attention_factor", factor)
