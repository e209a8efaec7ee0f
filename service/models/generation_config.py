"""What a model folder's generation_config.json says: how its makers meant it to be sampled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.models.config_fields import read_json, token_ids
from service.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Defaults for requests; None if the model says nothing, or something out of range.

    eos_token_ids: ids that end a sequence, from generation_config.json, else from config.json. An id outside the
    vocabulary (in files copied from a larger model) can never be drawn and is left out.
    """

    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None


def load_generation_config(folder: Path, config: ModelConfig) -> GenerationConfig:
    """Read generation_config.json, if there is one. Raises ModelLoadError if it is not a JSON object."""
    path = folder / "generation_config.json"
    fields = read_json(path) if path.exists() else {}
    temperature, top_p, top_k = fields.get("temperature"), fields.get("top_p"), fields.get("top_k")
    min_p, penalty = fields.get("min_p"), fields.get("repetition_penalty")
    ends = token_ids(fields.get("eos_token_id")) or config.eos_token_ids
    return GenerationConfig(
        eos_token_ids=frozenset(token_id for token_id in ends if 0 <= token_id < config.vocab_size),
        bos_token_id=min(token_ids(fields.get("bos_token_id")), default=config.bos_token_id),
        temperature=float(temperature) if isinstance(temperature, int | float) and temperature >= 0 else None,
        top_p=float(top_p) if isinstance(top_p, int | float) and 0 < top_p <= 1 else None,
        top_k=top_k if isinstance(top_k, int) and top_k > 0 else None,
        min_p=float(min_p) if isinstance(min_p, int | float) and 0 < min_p <= 1 else None,
        repetition_penalty=float(penalty) if isinstance(penalty, int | float) and 0.01 <= penalty <= 100 else None,
    )
