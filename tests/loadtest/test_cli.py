import json
from pathlib import Path

import pytest

from loadtest.cli import main
from loadtest.metrics import LONG_ARRAYS


def test_run_prints_a_table_and_one_line_of_json_and_saves_the_rest(
    fast_stub_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "a.json"
    code = main(
        [
            "run",
            "--base-url",
            fast_stub_url,
            "--workload",
            "fixed-8x4",
            "--num-prompts",
            "6",
            "--save",
            str(saved),
            "--goodput",
            "ttft:1000",
            "--request-rate",
            "500",
            "--label",
            "mine",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    short, full = json.loads(lines[-1]), json.loads(saved.read_text())
    assert code == 0
    assert "TTFT" in "".join(lines[:-1])
    assert (short["completed"], short["total_output_tokens"], short["arrival"]) == (6, 24, "poisson")
    assert full["output_lens"] == [4] * 6
    assert {name: value for name, value in full.items() if name not in LONG_ARRAYS} == short
    assert main(["report", str(saved), str(saved), "--out", str(tmp_path / "r.html")]) == 0
    assert "mine" in (tmp_path / "r.html").read_text()


def test_failed_requests_are_named_and_set_the_exit_code(
    fast_stub_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run",
        "--base-url",
        fast_stub_url,
        "--model",
        "stub-503",
        "--vocab-size",
        "50",
        "--workload",
        "fixed-8x4",
        "--num-prompts",
        "3",
        "--warmup",
        "0",
    ]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert "3 x http_503" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["failed"] == 3


def test_concurrency_alone_is_a_closed_loop(fast_stub_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "run",
            "--base-url",
            fast_stub_url,
            "--workload",
            "fixed-8x4",
            "--num-prompts",
            "6",
            "--max-concurrency",
            "2",
        ]
    )
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["arrival"], result["max_concurrency"], result["completed"]) == ("closed", 2, 6)
    assert result["max_concurrent_requests"] <= 2


def test_trace_is_the_same_for_the_same_seed_and_replays(
    fast_stub_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    for path in (one, two):
        assert (
            main(
                [
                    "trace",
                    "--workload",
                    "alpaca",
                    "--num",
                    "9",
                    "--seed",
                    "4",
                    "--request-rate",
                    "300",
                    "--out",
                    str(path),
                    "--vocab-size",
                    "90",
                ]
            )
            == 0
        )
    assert one.read_bytes() == two.read_bytes()
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["run", "--base-url", fast_stub_url, "--trace", str(one)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["total_input_tokens"] == facts["input_tokens"]
    assert result["total_output_tokens"] == facts["output_tokens"]
    assert result["arrival"] == "trace"


def test_wrong_calls_end_with_two_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--base-url", "http://127.0.0.1:1"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert main(["trace", "--workload", "nothing", "--out", "x.jsonl"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_workloads_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads"]) == 0
    listed = capsys.readouterr().out
    assert "ORCA (OSDI 2022)" in listed
    assert "decode-B" in listed


def test_where_to_save_is_known_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--base-url", "http://127.0.0.1:1", "--save", str(tmp_path / "none" / "a.json")]) == 2
    assert "--save" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_file_that_is_no_result_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(text)
    assert main(["report", str(wrong), "--out", str(tmp_path / "r.html")]) == 2
    assert "wrong.json" in capsys.readouterr().err
