"""Which models a number of ranks can share. Imports no torch: it is known before torch is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.errors import ConfigError
from service.layers.vocab_division import vocab_share_size
from service.models.model_config import ModelConfig

MXFP4_GROUP = 32
"""As in kernels/mxfp4.py, which imports torch."""


def check_stages(config: ModelConfig, num_stages: int) -> None:
    """Raises ConfigError if the layers do not divide into that many equal stages."""
    if config.num_layers % num_stages:
        raise ConfigError(
            f"pipeline-parallel-size: {num_stages} does not divide the model's {config.num_layers} layers; every stage"
            " needs the same number of layers"
        )


def check_divides(config: ModelConfig, num_ranks: int) -> None:
    """Raises ConfigError naming what that many ranks cannot share."""
    if num_ranks == 1:
        return
    check_sizes(_divided(config), num_ranks, _undivided(config, num_ranks))


def check_heads(config: ModelConfig, num_ranks: int) -> None:
    """Like `check_divides`, only for what every model has."""
    if num_ranks > 1:
        check_sizes([("attention heads", config.num_heads)], num_ranks, _undivided(config, num_ranks))


def check_sizes(sizes: Iterable[tuple[str, int]], num_ranks: int, others: Iterable[str] = ()) -> None:
    """Raises ConfigError naming the sizes that `num_ranks` does not divide, and the other faults."""
    faults = [*(f"{name} {size}" for name, size in sizes if size % num_ranks), *others]
    if faults:
        raise ConfigError(f"tensor-parallel-size: {num_ranks} does not divide the model's {'; '.join(faults)}")


def _undivided(config: ModelConfig, num_ranks: int) -> Iterator[str]:
    if config.num_kv_heads % num_ranks and num_ranks % config.num_kv_heads:
        yield f"key-value heads {config.num_kv_heads} (neither number divides the other)"
    if config.vocab_size <= (num_ranks - 1) * vocab_share_size(config.vocab_size, num_ranks):
        yield f"vocabulary {config.vocab_size} (too small: each rank takes a multiple of 16 ids)"


def _divided(config: ModelConfig) -> Iterator[tuple[str, int]]:
    experts = config.experts
    yield "attention heads", config.num_heads
    if experts is None or not all(experts.layers):
        yield "MLP inner size", config.intermediate_size
    if experts is not None:
        yield "shared expert's inner size", experts.shared_size or 0
        if experts.is_mxfp4:
            yield f"groups of {MXFP4_GROUP} in the experts' inner size", experts.intermediate_size // MXFP4_GROUP
        else:
            yield "experts' inner size", experts.intermediate_size
