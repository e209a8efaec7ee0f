"""The docs' table says what the run has found, failures too."""

from __future__ import annotations

import pytest

from tests.clients.table import BEGIN, END, Tried, read_results, replaced, table

RESULTS = """<testsuites><testsuite>
<testcase classname="tests.clients.test_curl" name="test_whole_and_streamed"/>
<testcase classname="tests.clients.test_instructor" name="test_a_typed_answer[TOOLS]"/>
<testcase classname="tests.clients.test_instructor" name="test_a_typed_answer[JSON]"><failure>no</failure></testcase>
<testcase classname="tests.clients.test_instructor" name="test_json_mode"><error>no</error></testcase>
<testcase classname="tests.clients.test_litellm" name="test_text_completion"><skipped/></testcase>
<testcase classname="tests.clients.test_table" name="test_a_test_of_this_table"/>
</testsuite></testsuites>"""


def test_each_client_has_its_row_and_what_failed_is_named() -> None:
    assert read_results(RESULTS)[1] == Tried("test_instructor", "a typed answer", "passed")
    *_, curl, instructor = table(read_results(RESULTS), "2026-01-02").splitlines()
    assert curl == "| curl | of the system | whole and streamed | 1 of 1 |"
    assert instructor.startswith("| instructor | ")
    assert instructor.endswith(" | **a typed answer: failed**; **json mode: failed** | 1 of 3 |")
    assert "Run on 2026-01-02:" in table([], "2026-01-02")


def test_only_what_is_between_the_marks_is_replaced() -> None:
    page = f"a\n{BEGIN}old\n{END}b\n"
    assert replaced(page, "new") == f"a\n{BEGIN}\nnew\n{END}b\n"
    assert replaced(replaced(page, "new"), "newer") == f"a\n{BEGIN}\nnewer\n{END}b\n"
    for broken in ("", f"a\n{BEGIN}b", f"a\n{END}"):
        with pytest.raises(ValueError, match="no place"):
            replaced(broken, "new")
