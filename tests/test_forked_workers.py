"""Tests that forked processes run: each is run once, and reported as if it had been run here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_workers import LONG, place

ROOT = Path(__file__).parents[1]

SHARED = """
import os, pathlib, pytest

NOTES = pathlib.Path(__file__).with_name("notes")

def note(*words):
    with NOTES.open("a") as notes:
        print(os.getpid(), *words, file=notes)

@pytest.fixture(scope="session")
def shared():
    note("begins")
    yield
    note("ends")

@pytest.fixture(autouse=True)
def noted(shared, request):
    note("runs", request.node.nodeid, os.environ["XDG_DATA_HOME"])
"""

FILES = {
    "test_a.py": """
import os, signal, pytest

def test_passes(): print("of the first")

def test_fails():
    print("of the second")
    assert 1 + 1 == 3

@pytest.mark.skip(reason="none here")
def test_is_skipped(): pass
""",
    "test_b.py": """
import os, signal

def test_kills_its_process(): os.kill(os.getpid(), signal.SIGKILL)
def test_comes_behind(): pass
""",
    "test_c.py": """
import pytest

from tests.forked_workers import LONG, place

@pytest.fixture
def broken():
    yield
    raise ValueError("at its end")

def test_ends_badly(broken): pass
""",
    **{f"test_many_{number}.py": "def test_one(): pass\ndef test_two(): pass" for number in range(6)},
}


def be_deaf_to_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(folder: Path, *arguments: str) -> tuple[int, str, list[list[str]]]:
    """Exit status, what is on the terminal, and the tests' notes, each with the process first."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.forked_workers", "-p", "no:hypothesispytest", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [*command, "--rootdir", folder, "-c", "/dev/null", *arguments, folder],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        preexec_fn=be_deaf_to_interrupts,  # as a shell's background is
    )
    return ended.returncode, ended.stdout, [line.split() for line in (folder / "notes").read_text().splitlines()]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"conftest.py": SHARED, **files}.items():
        (folder / name).write_text(text)
    return folder


def test_each_test_is_run_once_and_reported_whatever_becomes_of_its_worker(tmp_path: Path):
    status, shown, notes = run(write(tmp_path, FILES), "--forked-workers", "2")
    assert status == 1
    assert re.search(r"2 failed, 15 passed, 1 skipped, 1 error in", shown), shown
    assert "the worker that ran it ended, with status -9" in shown
    assert "ValueError: at its end" in shown
    captured = shown.split("_ test_fails _")[1].split("_ test_kills")[0]
    assert "of the second" in captured and "of the first" not in captured
    ran = [words[2] for words in notes if words[1] == "runs"]
    assert len(ran) == len(set(ran)) == 17, "the one that is skipped has no fixtures"


def test_files_stay_whole_and_each_worker_has_its_own_fixtures_and_data(tmp_path: Path):
    many = {name: text for name, text in FILES.items() if "many" in name}
    status, shown, notes = run(write(tmp_path, many), "--forked-workers", "3")
    assert status == 0 and "12 passed" in shown, shown
    workers = {words[0] for words in notes}
    for what in ("begins", "ends"):
        assert sorted(words[0] for words in notes if words[1] == what) == sorted(workers)
    file_and_worker = {(words[2].split("::")[0], words[0]) for words in notes if words[1] == "runs"}
    assert len(file_and_worker) == len(many)
    homes = {words[0]: words[3] for words in notes if words[1] == "runs"}
    assert len(set(homes.values())) == len(workers)
    assert not any(os.path.exists(home) for home in homes.values()), "they are gone"


def test_who_stops_at_the_first_failure_leaves_nothing_behind(tmp_path: Path):
    files = {
        "test_a.py": "import time\ndef test_waits(): time.sleep(30)\ndef test_never(): pass",
        "test_b.py": """
import pathlib, time

def test_fails():
    while "test_waits" not in pathlib.Path(__file__).with_name("notes").read_text():
        time.sleep(0.01)
    1 / 0
""",
    }
    status, shown, notes = run(write(tmp_path, files), "-x", "--forked-workers", "2")
    assert status == 1 and "1 failed in" in shown, shown
    assert "test_never" not in str(notes)
    for process in {words[0] for words in notes}:
        assert [process, "ends"] in notes
        assert not os.path.exists(f"/proc/{process}")


@pytest.mark.parametrize("text, status", [("def test_one(): pass", 0), ("import nothing_of_the_kind", 2)])
def test_the_exit_status_is_pytests(tmp_path: Path, text: str, status: int):
    (tmp_path / "notes").touch()
    assert run(write(tmp_path, {"test_a.py": text}), "--forked-workers", "2")[0] == status


def test_long_files_are_dealt_first():
    folder = Path(__file__).parent
    assert all((folder / name).exists() for name in LONG)
    files = [
        Path("elsewhere/e2e/test_b.py"),
        folder / "text/test_c.py",
        folder / "kernels/loops/test_d.py",
        folder / "e2e/test_a.py",
    ]
    assert [file.name for file in sorted(files, key=place)] == ["test_a.py", "test_d.py", "test_b.py", "test_c.py"]
