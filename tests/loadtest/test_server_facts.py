import json
from pathlib import Path

import pytest

from loadtest.server_facts import fetch_server_facts, vocab_size_of
from loadtest.stub_server import VOCAB_SIZE


def test_facts_of_the_stub(fast_stub_url: str) -> None:
    facts = fetch_server_facts(fast_stub_url, {})
    assert (facts.model_id, facts.vocab_size, facts.max_model_len) == ("stub", VOCAB_SIZE, None)


def test_vocabulary_of_a_local_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 77}))
    assert vocab_size_of({"id": "m", "root": str(tmp_path)}) == 77
    assert vocab_size_of({"id": "m"}) is None


def test_silent_server_is_named() -> None:
    with pytest.raises(ConnectionError, match="/v1/models"):
        fetch_server_facts("http://127.0.0.1:1", {})
