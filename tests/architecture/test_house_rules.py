"""What a reader may count on in every file: its length, a reason beside an exception, nothing of anybody's machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("service", "kernels", "loadtest", "tests")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
"""Not of Triton kernels, which are one function each by nature."""

EXCEPTION = re.compile(r"# (?:type: ignore|noqa).*")
WITH_REASON = re.compile(r"# (?:type: ignore\[[\w-]+\]  # |noqa: \w+ - )\w.*")
SOMEBODYS_MACHINE = re.compile(r"""(?<![\w.~/-])/(?:home|root|work|Users)/""")


def python_files() -> list[Path]:
    return [file for top in TOPS for file in sorted((ROOT / top).rglob("*.py"))]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def long_functions(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    if len(text.splitlines()) <= MAX_FUNCTION_LINES:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES and not _is_kernel(node):
                yield node.name


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_a_file_is_no_longer_than_a_reader_can_hold():
    long = {name_of(f) for f in python_files() if len(f.read_text(encoding="utf-8").splitlines()) > MAX_FILE_LINES}
    assert sorted(long) == []


def test_a_function_is_no_longer_than_a_screen_or_two():
    long = [(name_of(f), name) for f in python_files() for name in long_functions(f)]
    assert long == []


@pytest.mark.parametrize("top", TOPS)
def test_an_exception_from_a_rule_says_why(top: str):
    for file in (ROOT / top).rglob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            found = EXCEPTION.search(line)
            if found and file != Path(__file__):
                assert WITH_REASON.fullmatch(found.group()), f"{name_of(file)}: {line.strip()}"
                assert top != "tests" or "type:" not in line, f"{name_of(file)}: types of tests are not checked"


def test_nothing_tells_of_the_machine_that_it_was_written_on():
    prose = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("docker*.yml")]
    prose += [ROOT / "Makefile", ROOT / "Dockerfile", ROOT / ".env"]
    prose += [f for f in (ROOT / "deploy").rglob("*") if f.is_file()]
    prose += [f for top in TOPS for f in (ROOT / top).rglob("*") if f.suffix in {".md", ".sh", ".yaml", ".html"}]
    for file in [*python_files(), *prose]:
        if file != Path(__file__):
            found = SOMEBODYS_MACHINE.search(file.read_text(encoding="utf-8"))
            assert found is None, f"{name_of(file)}: {found}"
