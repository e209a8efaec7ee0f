from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.chat_client.batch_file import BatchFileError, batch_lines, endpoint_of


def file_of(folder: Path, *lines: Any) -> Path:
    path = folder / "in.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_openais_lines_are_sent_as_they_are_and_bare_requests_are_wrapped(tmp_path: Path) -> None:
    whole = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "é"}}
    path = file_of(tmp_path, "", whole, {"prompt": "x"}, "  ", {"messages": []})
    assert endpoint_of(path) == "/v1/responses"
    assert [json.loads(line) for line in batch_lines(path, "default")] == [
        whole,
        {"custom_id": "3", "method": "POST", "url": "/v1/completions", "body": {"model": "default", "prompt": "x"}},
        {
            "custom_id": "5",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "default", "messages": []},
        },
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("",), "holds no requests"),
        (("{",), "line 1 of .* is not JSON"),
        (("[]",), "line 1 of .* is not a JSON object"),
        (({"prompt": "x"}, {"text": "x"}), "line 2 is not a request"),
        (({"custom_id": "a", "body": {}},), "line 1 has no url"),
    ],
)
def test_what_is_wrong_is_told_by_its_line(tmp_path: Path, lines: tuple[Any, ...], message: str) -> None:
    path = file_of(tmp_path, *lines)
    with pytest.raises(BatchFileError, match=message):
        endpoint_of(path)
        list(batch_lines(path, "m"))
