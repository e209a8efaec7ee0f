"""Adapters as a user meets them: the server of the README with the adapter that ships, spoken to by openai-python."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai import OpenAI

from service.settings.quickstart import QUICKSTART_ADAPTERS
from tests.e2e.server_process import ServerProcess
from tests.e2e.strict_client import strict_client
from tests.e2e.test_tensor_parallel import RANKS
from tests.examples import spread

BASE, QUESTIONS = "headrace-quickstart", ["What is Headrace?", "What is ORCA?", "How do I watch the batch size?"]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module", params=RANKS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("adapters")
    shutil.copytree(QUICKSTART_ADAPTERS / "pirate", folder / "pirate")
    settings = json.loads((folder / "pirate/adapter_config.json").read_text())
    shutil.copytree(folder / "pirate", folder / "dora")
    (folder / "dora/adapter_config.json").write_text(json.dumps({**settings, "use_dora": True}))
    arguments = *request.param.split(), "--dtype", "float32", "--kv-cache-memory", "64MiB"
    with ServerProcess(
        *arguments, "--lora-dir", str(folder), "--lora-modules", f"captain={folder}/pirate", "--admin-api-key", "boss"
    ) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with strict_client(server.url) as client:
        yield client.with_options(api_key="boss")


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer boss"}) as http:
        yield http


def answer(client: OpenAI, model: str, question: str, max_tokens: int = 8) -> str:
    messages = [{"role": "user", "content": question}]
    chat = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=max_tokens)
    assert chat.model == model
    return chat.choices[0].message.content


def test_one_sees_at_once_which_model_answers_also_side_by_side(client: OpenAI) -> None:
    asked = [(model, question) for question in spread(QUESTIONS, 2) for model in (BASE, "pirate", "captain")]
    alone = [answer(client, *each) for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda each: answer(client, *each), asked))
    assert together == alone
    assert [text.startswith("Ahoy!") for text in alone] == [model != BASE for model, _ in asked]


def test_the_list_tells_whose_they_are(client: OpenAI) -> None:
    parents = {model.id: model.model_extra["parent"] for model in client.models.list()}
    assert parents == {BASE: None, "captain": BASE, "dora": BASE, "pirate": BASE}


def test_an_adapter_that_cannot_be_served_is_refused_by_name_and_the_others_go_on(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="use_dora"):
        answer(client, "dora", QUESTIONS[0])
    with pytest.raises(openai.NotFoundError):
        answer(client, "nobody", QUESTIONS[0])
    assert answer(client, "pirate", QUESTIONS[0]).startswith("Ahoy!")


def test_a_stream_keeps_its_adapter_when_the_name_is_unloaded(client: OpenAI, http: httpx.Client) -> None:
    assert http.post(LOAD, json={"lora_name": "mate", "lora_path": "pirate"}).status_code == 200
    whole = answer(client, "mate", QUESTIONS[1], max_tokens=24)
    messages = [{"role": "user", "content": QUESTIONS[1]}]
    stream = client.chat.completions.create(model="mate", messages=messages, temperature=0, max_tokens=24, stream=True)
    chunks = [next(stream)]
    assert http.post(UNLOAD, json={"lora_name": "mate"}).status_code == 200
    chunks += stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    with pytest.raises(openai.NotFoundError):
        answer(client, "mate", QUESTIONS[1])


def test_metrics_tell_of_them(client: OpenAI, http: httpx.Client) -> None:
    answer(client, "pirate", QUESTIONS[0])
    text = http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["headrace_lora_adapters"]) >= 1
    assert float(values["headrace_lora_loads_total"]) >= 1
    assert float(values["headrace_lora_reads_total"]) >= 1
    assert "vllm:lora_requests_info{" in text
    # Another rank has those that can still be asked for: no more.
    assert values.get('headrace_rank_lora_adapters{rank="1"}', "2.0") == "2.0"


@pytest.mark.parametrize(
    ("module", "why"),
    [("pirate=/nowhere", "pirate: adapter_config.json"), ("headrace-quickstart=x", "the model's name")],
)
def test_a_module_that_cannot_be_served_stops_the_start(module: str, why: str) -> None:
    with ServerProcess("--device", "cpu", "--lora-modules", module, wait_until_ready=False) as server:
        assert why in server.wait_for_line("lora-modules")
        assert server.wait(60) != 0
