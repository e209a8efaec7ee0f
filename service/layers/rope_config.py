"""What rotary positions are made by, and the ways to stretch them over longer contexts. Without torch, as every
model's config is."""

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


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """theta: base of the frequencies. rotary_dim: dimensions of a head that turn, even. scaling: None for none."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None
    attention_factor: float = field(init=False)

    def __post_init__(self) -> None:
        factor = self.scaling.attention_factor if isinstance(self.scaling, YarnScaling) else 1.0
        object.__setattr__(self, "attention_factor", factor)
