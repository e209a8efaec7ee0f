"""One word per thing, the field's own."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN_FILES = {"utils.py", "common.py", "helpers.py", "misc.py"}
FORBIDDEN_WORDS = {
    r"\bpage_(table|size|id)s?\b": "block_table, block_size, block_id",
    r"\bKVCacheManager\b": "the noun it manages",
    r"\bglobal [a-z]": "pass it as an argument",
    r"(?i)lockstep|talkative|\blet_?go\b|let_go": "the terms that vLLM's or SGLang's readers know",
    r"\b(move_(out|in)|moving_sequence_ids)\b": "swap_out, swap_in",
}


def source_files() -> list[Path]:
    return [f for top in ("service", "kernels", "loadtest") for f in (ROOT / top).rglob("*.py")]


def test_files_are_named_by_concept():
    assert [str(f) for f in source_files() if f.name in FORBIDDEN_FILES] == []


def test_a_thing_has_one_word():
    for file in source_files():
        for pattern, better in FORBIDDEN_WORDS.items():
            match = re.search(pattern, file.read_text())
            assert match is None, f"{file}: {match.group() if match else ''}: say {better}"
