from __future__ import annotations

import threading
from collections import defaultdict

import httpx
import pytest

from service.api.answers.answering import ignored_header, whole_json
from service.core.host_times import HostTimes
from service.protocol.completions import CompletionChoice, CompletionResponse
from service.protocol.usage import Usage
from tests.api.running_server import RunningServer, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of


@pytest.mark.parametrize(("names", "header"), [((), None), (("a", "b.c"), "a,b.c"), (("x y", "ä\n"), "x?y,??")])
def test_the_header_of_ignored_fields(names: tuple[str, ...], header: str | None) -> None:
    assert ignored_header(names).get("x-ignored-params") == header


@pytest.mark.parametrize("num_choices", [0, 1, 3])
def test_choice_by_choice_the_answer_is_what_it_is_in_one_piece(num_choices: int) -> None:
    text = 'says "choices":[] and ,'
    choices = [CompletionChoice(index=i, text=text, finish_reason="stop") for i in range(num_choices)]
    usage = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details=None)
    answer = CompletionResponse(id=text, created=1, model=text, system_fingerprint=None, choices=choices, usage=usage)
    assert whole_json(answer) == answer.model_dump_json(exclude_unset=True)


def test_a_failed_request_is_a_json_error(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: -1)
    response = http.post(COMPLETIONS, json=completion())
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"


def test_one_failing_prompt_fails_the_call_and_aborts_the_rest(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: -1 if prompt[-1] == 76 else 75)
    server.executor.delay_s = 0.002
    aborts = server.metric("headrace_aborts_total", reason="call_failed")
    response = http.post(COMPLETIONS, json=completion(prompt=[[75], [76], [75]], max_tokens=1000))
    assert response.status_code == 500
    server.check_idle()
    assert server.executor.num_iterations < 20
    assert server.metric("headrace_aborts_total", reason="call_failed") == aborts + 1


def test_an_executor_that_fails_fails_only_what_it_ran(server: RunningServer, http: httpx.Client) -> None:
    server.executor.fault = RuntimeError("/secret")
    response = http.post(CHAT, json=chat("hi"))
    assert response.status_code == 500
    assert "secret" not in response.text
    server.reset()
    server.say("fine again")
    assert http.post(COMPLETIONS, json=completion()).json()["choices"][0]["text"] == "fine again"


def test_each_part_of_the_hosts_time_has_one_writing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would lose some of it. Long prompts are read, and many logprobs whole_json, in threads of the pool."""
    writers: dict[str, set[str]] = defaultdict(set)

    class Watched(HostTimes):
        def __setattr__(self, name: str, value: float) -> None:
            writers[name].add(threading.current_thread().name)
            super().__setattr__(name, value)

    monkeypatch.setattr("service.metrics.recorder.HostTimes", Watched)
    with running() as server, httpx.Client(base_url=server.base_url, timeout=10) as http:
        writers.clear()
        server.say("so it is")
        for stream in (False, True):
            assert http.post(CHAT, json=chat("hello", stream=stream)).status_code == 200
            body = completion(prompt="hello " * 300, echo=True, logprobs=2, max_tokens=9, stream=stream)
            answer = http.post(COMPLETIONS, json=body)
        assert "".join(e["choices"][0]["text"] for e in events_of(answer.text)) == "hello " * 300 + "so it is"
        assert http.post("/tokenize", json={"prompt": "hello " * 2000}).status_code == 200
    of_engine = ("schedule", "launch", "wait", "apply", "device", "commands")
    of_loop = ("tokenize", "detokenize", "sse")
    assert dict(writers) == {**{part: {"engine"} for part in of_engine}, **{part: {"server"} for part in of_loop}}
