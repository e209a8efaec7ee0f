from __future__ import annotations

import pytest

from kernels import compile_processes
from kernels.compile_processes import CompileProcesses

TARGET = {"backend": "cuda", "arch": 90, "warp_size": 32}
WANTED = [("m", "f", "hash of f", "{}"), ("m", "g", "hash of g", "{}")]


def server(*lines):
    """A process that has these lines as its program, and the request as `line`."""
    return "-c", "\n".join(("import sys, json, time", "for line in sys.stdin:", *(f"    {each}" for each in lines)))


@pytest.fixture
def processes():
    made = []

    def start(*lines):
        made.append(CompileProcesses(3, server(*lines)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_the_process_is_told_target_and_kernels_and_its_answer_counts(processes):
    asked = processes(
        "request = json.loads(line)",
        f"assert request['target'] == {TARGET!r} and sys.argv[1] == '3'",
        "print(len(request['wanted']), flush=True)",
    )
    assert asked.compile(TARGET, WANTED) == 2
    assert asked.compile(TARGET, WANTED[:1]) == 1


@pytest.mark.parametrize("fault", ["sys.exit(1)", "print('no number', flush=True)"])
def test_who_ends_or_talks_nonsense_leaves_all_to_the_caller(fault, processes, caplog):
    asked = processes(fault)
    assert asked.compile(TARGET, WANTED) == 0
    assert "threads compile instead" in caplog.text


def test_who_never_answers_is_ended(processes, monkeypatch, caplog):
    monkeypatch.setattr(compile_processes, "_PATIENCE_S", 0.2)
    assert processes("time.sleep(60)").compile(TARGET, WANTED) == 0
    assert "threads compile instead" in caplog.text


def test_none_is_left_when_they_are_closed(processes):
    asked = processes("print(0, flush=True)")
    asked.compile(TARGET, WANTED)
    asked.close()
    asked.close()
    assert asked._process.poll() is not None


def test_one_set_runs_between_start_and_stop():
    assert compile_processes.running() is None
    compile_processes.start(1, server=server("pass"))
    first = compile_processes.running()
    compile_processes.start(1, server=server("pass"))
    second = compile_processes.running()
    compile_processes.stop()
    compile_processes.stop()
    assert first is not second and compile_processes.running() is None
    assert [each._process.poll() is not None for each in (first, second)] == [True, True]
