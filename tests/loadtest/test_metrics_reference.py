from __future__ import annotations

from loadtest.metrics_reference import REFERENCE, write_reference


def test_the_page_is_what_the_code_says_now():
    assert REFERENCE.read_text(encoding="utf-8") == write_reference(), "run `python -m loadtest.metrics_reference`"


def test_what_feeds_vllms_names_alone_has_no_row_of_its_own():
    assert "| `inference_seconds`" not in write_reference()
