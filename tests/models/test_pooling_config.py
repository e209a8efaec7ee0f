from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.embedding import EmbedderConfig
from service.errors import ModelLoadError
from service.models.pooling_config import load_embedder_config

OF = "sentence_transformers.models."
PIPELINE = [
    {"idx": 0, "name": "0", "path": "", "type": f"{OF}Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OF}Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{OF}Normalize"},
]
LAST = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}


def write(
    folder: Path, modules: Any = PIPELINE, pooling: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> Path:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(LAST if pooling is None else pooling))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 64, **(config or {})}))
    return folder


def test_a_model_without_modules_or_without_pooling_generates(tmp_path: Path):
    assert load_embedder_config(tmp_path) is None
    assert load_embedder_config(write(tmp_path, modules=PIPELINE[:1])) is None


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        (LAST, "last"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False, "include_prompt": True}, "mean"),
        ({"embedding_dimension": 64, "pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_how_it_pools(pooling: dict[str, Any], kind: Any, tmp_path: Path):
    assert load_embedder_config(write(tmp_path, pooling=pooling)) == EmbedderConfig(kind, True, 64)


def test_without_normalize_vectors_stay_as_they_are_and_sizes_may_be_listed(tmp_path: Path):
    config = {"matryoshka_dimensions": [32, 16]}
    got = load_embedder_config(write(tmp_path, modules=PIPELINE[:2], config=config))
    assert got == EmbedderConfig("last", False, 64, (16, 32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pooling": {"pooling_mode_cls_token": True}}, r"1_Pooling/config\.json: pooling by cls is not supported"),
        ({"pooling": {}}, "pooling by nothing is not supported"),
        (
            {"pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}},
            "pooling by mean and max is not supported",
        ),
        ({"pooling": {**LAST, "include_prompt": False}}, "include_prompt False is not supported"),
        (
            {"modules": [*PIPELINE[:2], {"path": "2_Dense", "type": f"{OF}Dense"}, PIPELINE[2]]},
            r"modules\.json: Transformer, Pooling, Dense, Normalize are not supported",
        ),
        ({"modules": "{"}, r"modules\.json: is not a list"),
        ({"modules": [1]}, r"modules\.json: is not a list"),
        ({"modules": [PIPELINE[0], {"path": "../1_Pooling", "type": "Pooling"}]}, "leads out of the model folder"),
        ({"config": {"is_causal": False}}, "is_causal False is not supported"),
        ({"config": {"use_bidirectional_attention": True}}, "use_bidirectional_attention True is not supported"),
        ({"config": {"matryoshka_dimensions": "64"}}, "matryoshka_dimensions must be a list"),
    ],
)
def test_what_would_give_other_vectors_is_refused_by_name(changes: dict[str, Any], reason: str, tmp_path: Path):
    with pytest.raises(ModelLoadError, match=reason):
        load_embedder_config(write(tmp_path, **changes))


def test_a_pooling_that_is_not_there(tmp_path: Path):
    folder = write(tmp_path)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"1_Pooling/config\.json: is not in the model folder"):
        load_embedder_config(folder)
