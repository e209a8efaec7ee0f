from __future__ import annotations

import subprocess
import sys

import pytest

from service.runner.openmp import limit_spinning


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_what_the_environment_says_stands(before, after):
    environment = dict(before)
    limit_spinning(environment)
    assert environment == after


def test_it_comes_before_torch():
    code = "import sys, service.runner.openmp; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
