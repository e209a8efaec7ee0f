"""docs/clients.md's table, from what a run of these tests has found: `python -m tests.clients.table RESULTS PAGE`.

RESULTS: what pytest wrote (`--junitxml`). PAGE: the text between its two marks is replaced. A client is a module here;
what it was tried with are the names of its tests.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

BEGIN, END = "<!-- written by make clients: -->\n", "<!-- end -->\n"
DISTRIBUTIONS = {
    "test_agent_demo": "openai-agents",
    "test_anthropic": "anthropic",
    "test_curl": "curl",
    "test_instructor": "instructor",
    "test_langchain": "langchain-openai",
    "test_litellm": "litellm",
    "test_llama_index": "llama-index-llms-openai-like",
    "test_openai": "openai",
    "test_openai_agents": "openai-agents",
    "test_pydantic_ai": "pydantic-ai-slim",
}
"""Modules and whose clients they are."""


class Tried(NamedTuple):
    """One test. outcome: passed, failed or skipped."""

    module: str
    name: str
    outcome: str


def read_results(text: str) -> list[Tried]:
    """A test that is repeated with several parameters stands there as often."""
    return [
        Tried(case.attrib["classname"].rpartition(".")[2], _plain(case.attrib["name"]), _outcome(case))
        for case in ElementTree.fromstring(text).iter("testcase")
    ]


def table(results: Iterable[Tried], day: str) -> str:
    """A row a client; a client that was not tried has none."""
    by_client = defaultdict[str, list[Tried]](list)
    for each in results:
        if each.outcome != "skipped" and each.module in DISTRIBUTIONS:
            by_client[DISTRIBUTIONS[each.module]].append(each)
    lines = [f"Run on {day}:", "", "| client | version | what it was tried with | passed |", "|---|---|---|---|"]
    for name, tried in sorted(by_client.items()):
        num_passed = sum(each.outcome == "passed" for each in tried)
        what = "; ".join(dict.fromkeys(_told(each, tried) for each in tried))
        lines.append(f"| {name} | {_version(name)} | {what} | {num_passed} of {len(tried)} |")
    return "\n".join([*lines, ""])


def replaced(page: str, told: str) -> str:
    """The page with `told` between its marks. ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no place for the table")
    return f"{before}{begin}\n{told}\n{end}{after}"


def _told(each: Tried, tried: list[Tried]) -> str:
    failed = any(other.outcome == "failed" for other in tried if other.name == each.name)
    return f"**{each.name}: failed**" if failed else each.name


def _plain(name: str) -> str:
    return re.sub(r"\[.*", "", name).removeprefix("test_").replace("_", " ")


def _outcome(case: ElementTree.Element) -> str:
    if case.find("skipped") is not None:
        return "skipped"
    return "passed" if case.find("failure") is None and case.find("error") is None else "failed"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of the system"


def main(results: Path, page: Path) -> None:
    told = table(read_results(results.read_text()), date.today().isoformat())
    page.write_text(replaced(page.read_text(), told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
