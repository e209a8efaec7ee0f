import json
from pathlib import Path

import pytest

from loadtest.arrivals import PoissonArrivals
from loadtest.random_streams import random_stream
from loadtest.trace import TraceRequest, faster, read_trace, with_arrivals, write_trace
from loadtest.workload import draw, named


@pytest.mark.parametrize("name", ["orca", "multi-turn", "shared-prefix", "mixed-priorities"])
def test_own_form_round_trips(name: str, tmp_path: Path) -> None:
    requests = draw(named(name), 40, seed=5)
    firsts = sum(request.turn == 0 for request in requests)
    times = PoissonArrivals(3.0).arrival_times(firsts, random_stream(5, "arrivals"))
    requests = with_arrivals(requests, times.tolist())
    write_trace(tmp_path / "t.jsonl", requests)
    assert read_trace(tmp_path / "t.jsonl") == requests


def test_prompts_round_trip(tmp_path: Path) -> None:
    request = TraceRequest(0, prompt_token_ids=(5, 6, 7))
    write_trace(tmp_path / "t.jsonl", [request])
    assert read_trace(tmp_path / "t.jsonl") == [request]


def test_csv_of_burstgpt(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,230,1317,Conversation log\n"
        "50,ChatGPT,10,0,10,Conversation log\n"
    )
    first, second = read_trace(path)
    assert (first.arrival_s, first.prompt_len, first.output_len) == (0.0, 472, 18)
    assert (second.arrival_s, second.prompt_len, second.output_len) == (40.0, 1087, 230)


def test_csv_of_azure(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,27\n"
    )
    first, second = read_trace(path)
    assert second.arrival_s == pytest.approx(0.5, abs=1e-6)
    assert (first.prompt_len, second.output_len) == (4808, 27)


def test_jsonl_of_mooncake_counts_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 12, "output_length": 5, "hash_ids": [0]},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert [request.arrival_s for request in read_trace(path)] == [0.0, 3.0]


def test_jsonl_with_prompts(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "hello there", "output_tokens": 9}\n\n{"prompt": [4, 5, 6]}\n')
    text, ids = read_trace(path)
    assert (text.prompt_text, text.output_len) == ("hello there", 9)
    assert (ids.prompt_token_ids, ids.prompt_len, ids.output_len) == ((4, 5, 6), 3, 16)


def test_sharegpt_takes_the_first_exchange(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    talk = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 400}]
    path.write_text(json.dumps([{"conversations": talk}, {"conversations": talk[:1]}, {"conversations": []}]))
    (request,) = read_trace(path)
    assert (request.prompt_text, request.prompt_len, request.output_len) == ("a" * 40, 10, 100)


def test_limit_and_speed(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", [TraceRequest(i, arrival_s=2.0 * i) for i in range(5)])
    assert [request.arrival_s for request in faster(read_trace(tmp_path / "t.jsonl", 3), 2.0)] == [0, 1, 2]


@pytest.mark.parametrize(("name", "content"), [("t.jsonl", "\n"), ("t.txt", "x"), ("t.csv", "a,b\n1,2\n")])
def test_useless_traces_are_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="t\\."):
        read_trace(tmp_path / name)
