import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loadtest.quickstart.corpus import load_corpus
from loadtest.quickstart.evaluate import FolderAsker, ServerAsker, evaluate, is_right, report
from loadtest.quickstart.question_sets import Question, QuestionSet, question_sets
from service.settings.quickstart import QUICKSTART_MODEL

ACCEPTED = frozenset({"Run make serve. It starts."})
EVERY = 20


class EchoHandler(BaseHTTPRequestHandler):
    """Serves one model that answers with the question, and refuses any request that is not greedy."""

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "echo", "object": "model", "created": 0, "owned_by": "x"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (request["model"], request["temperature"]) == ("echo", 0)
        message = {"role": "assistant", "content": request["messages"][0]["content"]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self._answer({"id": "1", "object": "chat.completion", "created": 0, "model": "echo", "choices": [choice]})

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: dict[str, object]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


@pytest.fixture
def echo_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_a_server_is_asked_greedily_and_answers_in_order(echo_url: str) -> None:
    questions = [f"question {number}" for number in range(20)]
    with ServerAsker(echo_url, "none") as ask:
        assert ask(questions) == questions


@pytest.mark.parametrize("reply", ["Run make serve. It starts.", "  Run make serve.\nIt  starts. "])
def test_the_canonical_answer_is_right(reply: str) -> None:
    assert is_right(reply, ACCEPTED)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Run make serve.",
        "run make serve. it starts.",
        "Run make serve. It starts. And more.",
        "Run make test.",
    ],
)
def test_anything_else_is_wrong(reply: str) -> None:
    assert not is_right(reply, ACCEPTED)


def test_the_score_counts_and_reports_wrong_replies() -> None:
    def parrot(questions: Sequence[str]) -> list[str]:
        return list(questions)

    questions = (Question("a", "x", frozenset({"x"})), Question("b", "y", frozenset({"z"})))
    score = evaluate(parrot, [QuestionSet("two", 0.6, questions)])[0]
    assert score.share_right == 0.5
    assert not score.passed
    assert "'y' -> 'y'" in report([score])
    assert "BELOW TARGET" in report([score])


def test_the_model_folder_is_small_and_complete() -> None:
    files = {file.name: file.stat().st_size for file in QUICKSTART_MODEL.iterdir()}
    assert sum(files.values()) <= 12_000_000
    wanted = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert wanted <= set(files)


def test_the_weights_are_bfloat16_and_fit_the_tokenizer() -> None:
    model = AutoModelForCausalLM.from_pretrained(QUICKSTART_MODEL)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(QUICKSTART_MODEL))
    recorded = json.loads((QUICKSTART_MODEL / "training.json").read_text())
    assert recorded["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_the_shipped_model_meets_its_targets_on_every_twentieth_question() -> None:
    sets = [QuestionSet(group.name, group.target, group.questions[::EVERY]) for group in question_sets(load_corpus())]
    scores = evaluate(FolderAsker(QUICKSTART_MODEL), sets)
    assert all(score.passed for score in scores), report(scores)
