from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.examples import covering, examples, spread

ROOT = Path(__file__).parents[1]


def test_a_number_is_multiplied_and_never_none():
    assert [examples(8, factor) for factor in (0.01, 1, 2.5, 10)] == [1, 8, 20, 80]


@pytest.mark.parametrize("usual", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("many", [1, 2, 3, 10, 31])
def test_a_spread_has_both_ends_and_nothing_twice(usual: int, many: int):
    chosen = spread(range(many), usual, 1)
    assert len(chosen) == len(set(chosen)) == min(usual, many)
    assert chosen[0] == 0
    assert chosen[-1] == many - 1 or usual == 1
    assert spread(range(many), usual, 50) == list(range(many))


@pytest.mark.parametrize("sizes", [(3,), (4, 3), (4, 3, 2), (4, 4, 4, 4), (5, 1, 2)])
def test_values_meet_in_few_rows(sizes: tuple[int, ...]):
    every = list(itertools.product(*[range(size) for size in sizes]))
    pairs = covering(every, 2)
    for left, right in itertools.combinations(range(len(sizes)), 2):
        met = {(row[left], row[right]) for row in pairs}
        assert met == set(itertools.product(range(sizes[left]), range(sizes[right])))
    largest = sorted(sizes)[-2:]
    assert len(pairs) <= 1.5 * largest[0] * largest[-1]
    once = covering(every, 1)
    assert [{row[axis] for row in once} for axis in range(len(sizes))] == [set(range(size)) for size in sizes]
    assert len(once) == max(sizes)


THINNED = """
import pytest
cross = [pytest.mark.parametrize(name, range(4)) for name in "abc"]
@cross[0]
@cross[1]
@cross[2]
@pytest.mark.pairwise
def test_pairs(a, b, c): ...
@cross[0]
@cross[1]
@pytest.mark.each_once
def test_once(a, b): ...
@cross[0]
@pytest.mark.parametrize("b", [0, pytest.param(1, marks=pytest.mark.gpu)])
@pytest.mark.some(3)
def test_some(a, b): ...
@cross[0]
def test_all(a): ...
"""


@pytest.mark.parametrize(
    ("factor", "counts"),
    [("1", {"pairs": 16, "once": 4, "some": 3, "all": 4}), ("10", {"pairs": 64, "once": 16, "some": 4, "all": 4})],
)
def test_markers_leave_tests_out(factor: str, counts: dict[str, int], tmp_path: Path):
    (tmp_path / "test_thinned.py").write_text(THINNED)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest"]
    asked = [*command, "--collect-only", "-q", "--rootdir", tmp_path, tmp_path]
    found = subprocess.run(
        [*asked, "-o", "addopts=-m 'not gpu'"],
        cwd=ROOT,
        env=os.environ | {"TEST_EXAMPLES": factor},
        capture_output=True,
        text=True,
    )
    names = Counter(re.findall(r"::test_(\w+)\[", found.stdout))
    assert names == counts, found.stdout + found.stderr
    one = subprocess.run(
        [*command, "-q", f"{tmp_path}/test_thinned.py::test_pairs[3-2-1]"], cwd=ROOT, capture_output=True
    )
    assert one.returncode == 0, "what is asked for by its name is run"
