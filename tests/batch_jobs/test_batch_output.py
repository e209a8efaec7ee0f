from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batch_jobs.batch_output import Answer, BatchOutput, LineResult
from tests.examples import examples

RESULTS = [
    LineResult(1, "a", Answer(200, "r1", b'{"text":"\xc3\xa9"}')),
    LineResult(2, "b", Answer(400, "r2", b'{"error":{}}')),
    LineResult(4, 'c"\n', Answer(200, "r3", b'{"id":"batch_req_ab_99"}')),
    LineResult(7, "d", ("batch_expired", "Too late.")),
]


def test_what_was_appended_is_lines_of_openais_shape(tmp_path: Path) -> None:
    output = BatchOutput(tmp_path / "b", "ab")
    output.append(*output.lines_of(RESULTS))
    answers, errors = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (output.answers, output.errors)
    )
    assert answers[0] == {
        "id": "batch_req_ab_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r1", "body": {"text": "é"}},
        "error": None,
    }
    assert [each["custom_id"] for each in answers + errors] == ["a", 'c"\n', "b", "d"]
    assert errors[1]["response"] is None
    assert errors[1]["error"] == {"code": "batch_expired", "message": "Too late."}
    output.close()


@given(st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=examples(40), deadline=None)
def test_cut_anywhere_what_is_whole_counts_and_the_rest_is_gone(cut_answers: int, cut_errors: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = BatchOutput(Path(folder), "ab")
        output.append(*output.lines_of(RESULTS))
        output.close()
        kept = []
        for path, cut in ((output.answers, cut_answers), (output.errors, cut_errors)):
            content = path.read_bytes()[:cut]
            path.write_bytes(content)
            kept.append(content[: content.rfind(b"\n") + 1])
        with closing(BatchOutput(Path(folder), "ab")) as again:
            recovered = again.recover()
            assert [again.answers.read_bytes(), again.errors.read_bytes()] == kept
        whole = [int(json.loads(line)["id"].rpartition("_")[2]) for part in kept for line in part.splitlines()]
        assert [number for number, is_done in enumerate(recovered.done) if is_done] == sorted(whole)
        assert (recovered.num_completed, recovered.num_failed) == (kept[0].count(b"\n"), kept[1].count(b"\n"))
        assert recovered.num_bytes == len(kept[0]) + len(kept[1])


def test_what_cannot_be_written_whole_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = BatchOutput(tmp_path, "ab")
    output.append(*output.lines_of(RESULTS[:1]))
    before = output.answers.read_bytes(), output.errors.read_bytes()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("service.batch_jobs.batch_output.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        output.append(*output.lines_of(RESULTS[1:]))
    assert (output.answers.read_bytes(), output.errors.read_bytes()) == before
    output.close()
