"""Which models so many ranks can share. Without torch: it is told before torch is loaded."""

from __future__ import annotations

from service.errors import ConfigError
from service.layers.vocab_division import vocab_share_size
from service.models.model_config import ModelConfig


def check_divides(config: ModelConfig, num_ranks: int) -> None:
    """Raises ConfigError naming what so many ranks cannot share."""
    if num_ranks == 1:
        return
    faults = [
        f"{name} {size}"
        for name, size in (("attention heads", config.num_heads), ("MLP inner size", config.intermediate_size))
        if size % num_ranks
    ]
    if config.num_kv_heads % num_ranks and num_ranks % config.num_kv_heads:
        faults.append(f"key-value heads {config.num_kv_heads}, nor the other way round")
    if config.vocab_size <= (num_ranks - 1) * vocab_share_size(config.vocab_size, num_ranks):
        faults.append(f"vocabulary {config.vocab_size}, at least 16 ids a rank")
    if config.experts is not None:
        raise ConfigError("tensor-parallel-size: a mixture of experts is served by one rank only")
    if faults:
        raise ConfigError(f"tensor-parallel-size: {num_ranks} does not divide the model's {'; '.join(faults)}")
