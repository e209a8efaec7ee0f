from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.made_once import made_once


def test_of_several_processes_one_makes_it(tmp_path: Path):
    def make() -> int:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(0.1)
        return os.getpid()

    name = f"of {os.getpid()}"
    children = []
    for _ in range(3):
        if not (child := os.fork()):
            os._exit(made_once(name, make) != int(next(tmp_path.iterdir()).name))
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 3
    assert [int(path.name) for path in tmp_path.iterdir()] == [made_once(name, make)]
    assert made_once(name, make) in children


def test_who_fails_leaves_it_to_the_next():
    with pytest.raises(ZeroDivisionError):
        made_once("that fails", lambda: 1 // 0)
    assert made_once("that fails", lambda: 5) == 5
