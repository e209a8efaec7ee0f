"""A folder as sentence-transformers writes it, served by the real command and asked by OpenAI's client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from openai import OpenAI
from transformers import AutoModel, Qwen3Config

from service.settings.quickstart import QUICKSTART_MODEL
from service.text.tokenizer import Tokenizer
from tests.e2e.server_process import ServerProcess
from tests.e2e.strict_client import strict_client
from tests.e2e.test_tensor_parallel import RANKS

TEXTS = ["What is paging?", "KV blocks are pages of the cache. " * 20, "x"]
LINE = {"method": "POST", "url": "/v1/embeddings"}
BATCH = [{"custom_id": str(i), **LINE, "body": {"input": text}} for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 without an output head, with the quickstart model's tokenizer."""
    folder = tmp_path_factory.mktemp("embedder") / "tiny-embedding"
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_folder(QUICKSTART_MODEL)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = Qwen3Config(vocab_size=tokenizer.num_tokens, initializer_range=0.2, **sizes, **heads)
    AutoModel.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(QUICKSTART_MODEL / name, folder / name)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    return folder


@pytest.fixture(scope="module", params=RANKS)
def server(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    options = ["--dtype", "float32", "--kv-cache-memory", "4MiB", "--max-num-batched-tokens", "64"]
    options += ["--max-num-seqs", "8", "--data-dir", str(tmp_path_factory.mktemp("data"))]
    options += request.param.split()
    with ServerProcess(str(folder), *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with strict_client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def wanted(folder: Path) -> np.ndarray:
    tokenizer = Tokenizer.from_folder(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        ids = [torch.tensor([tokenizer.encode(text, add_special_tokens=True)]) for text in TEXTS]
        states = [model(each).last_hidden_state[0, -1] for each in ids]
    return torch.nn.functional.normalize(torch.stack(states), dim=-1).numpy()


def test_a_served_embedder_gives_transformers_vectors(client: OpenAI, wanted: np.ndarray) -> None:
    answer = client.embeddings.create(model="tiny-embedding", input=TEXTS, encoding_format="float")
    got = np.array([each.embedding for each in answer.data])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_a_batch_of_them_is_run_too(client: OpenAI, wanted: np.ndarray) -> None:
    lines = "\n".join(map(json.dumps, BATCH)).encode()
    file = client.files.create(file=("texts.jsonl", lines), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    while batch.status not in ("completed", "failed", "expired"):
        batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None, batch
    results = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    got = {each["custom_id"]: each["response"]["body"]["data"][0]["embedding"] for each in results}
    np.testing.assert_allclose(np.array([got[str(i)] for i in range(len(TEXTS))]), wanted, rtol=0, atol=1e-5)


def test_it_is_counted_and_called_by_its_path_too(server: ServerProcess, folder: Path) -> None:
    with httpx.Client(base_url=server.url, timeout=20) as http:
        answer = http.post("/v1/embeddings", json={"model": str(folder), "input": ["a b c", "d"]})
        assert answer.json()["model"] == "tiny-embedding"
        counted = http.get("/metrics").text.splitlines()
        assert any(
            line.startswith('headrace_http_requests_total{method="POST",route="/v1/embeddings"') for line in counted
        )
        (ended,) = (line for line in counted if line.startswith('headrace_requests_total{reason="stop"}'))
        assert float(ended.split()[-1]) >= 2
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 400
