"""The files that a decode token passes, as docs/architecture.md names them, are those that it is seen to pass."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from kernels.cpu_loops import cpu_loops
from service.core.iteration import IterationPlan
from service.engine import engine_loop, idle_turns, streams
from service.layers.packed_weight import WeightForm
from service.runner.choices import weight_forms
from service.runner.model_runner import ModelRunner
from tests.api.running_server import MODEL, RunningServer, Scene
from tests.models.checkpoints import llama
from tests.runner.loading import load

ROOT = Path(__file__).parents[2]
MOST_FILES = {"GPU": 20, "CPU": 20}
MOST_LINES = {"GPU": 3_000, "CPU": 2_900}
"""Of these files, whole."""
MOST_LINES_RUN = 430
"""Of these lines, those that run for a token, on a CPU."""
BESIDE = (
    "service/metrics/",
    "service/prediction/",
    "service/models/",
    "service/layers/",
    "service/engine/step_record.py",
    "service/engine/fenced_sink.py",
    "service/scheduler/decision_tally.py",
    "service/core/stats.py",
    "service/core/clock.py",
    "service/http/server.py",
    "service/text/token_bytes.py",
)
"""Metrics, prediction, the model; the clock; what the HTTP server does each second; an id's bytes, asked for once."""
STEADY = range(20, 60)
"""The iterations that are looked at, ten blocks of tokens: the first ones, and the last, are another way."""
OFTEN = 5


class Way:
    """Files below service/ of which functions run, or values are made, in steady iterations, in threads that begin
    within `watching`, and of these functions the lines that run. iteration: the number of the present one."""

    def __init__(self) -> None:
        self.iteration = 0
        self._seen: defaultdict[str, set[int]] = defaultdict(set)
        self._lines: defaultdict[tuple[str, int], set[int]] = defaultdict(set)

    def files(self) -> set[str]:
        """What is passed again and again: not what comes by the clock, as a look at idle work does."""
        names = {name for name, iterations in self._seen.items() if len(iterations) >= OFTEN}
        return {name for name in names if not name.startswith(BESIDE)}

    def num_lines(self) -> int:
        """Of these files those that run as often."""
        files = self.files()
        return sum(name in files and len(seen) >= OFTEN for (name, _), seen in self._lines.items())

    @contextmanager
    def watching(self) -> Iterator[None]:
        threading.settrace(self._note)
        try:
            yield
        finally:
            threading.settrace(None)

    def _note(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if name == "<string>":  # made by a NamedTuple or dataclass
            made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
            name = f"{ROOT}/{made.__module__.replace('.', '/')}.py"
        if not name.startswith(f"{ROOT}/service/"):
            return None
        name = name.removeprefix(f"{ROOT}/")
        if self.iteration in STEADY:
            self._seen[name].add(self.iteration)
        if name.startswith(BESIDE) or frame.f_code.co_filename == "<string>":
            return None

        def note_line(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line" and self.iteration in STEADY:
                self._lines[name, frame.f_lineno].add(self.iteration)
            return note_line

        return note_line


def documented(*kinds: str) -> set[str]:
    """Files in the table's rows, of those that are of one kind of device only those of `kinds`."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## Files a decode token passes through")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "`service/" in line]
    of_kind = [row for row in rows if all(kind in kinds for kind in ("GPU", "CPU") if f"on a {kind}" in row)]
    return {name for row in of_kind for name in re.findall(r"`(service/[\w/]+\.py)`", row)}


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Way:
    if cpu_loops() is None:
        pytest.skip("this machine runs no compiled loops")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_forms, "_fastest", lambda both, timer: WeightForm.BOTH)
        loaded = load(llama(tmp_path_factory.mktemp("model"), head_dim=32), "bfloat16", block_size=4, max_num_seqs=4)
        patch.setattr(engine_loop, "SNAPSHOT_EVERY_S", math.inf)
        patch.setattr(idle_turns, "CATCH_UP_EVERY_S", math.inf)
        patch.setattr(streams, "WINDOW_S", math.inf)
        return _way_of_a_token(loaded.runner)


def _way_of_a_token(runner: ModelRunner) -> Way:
    way = Way()
    server = RunningServer(Scene(num_blocks=64, finds_prefixes=True))

    def launch(plan: IterationPlan) -> object:
        way.iteration += 1
        return runner.launch(plan)

    server.executor.launch = launch
    with way.watching():
        server.start()
        try:
            body = {"model": MODEL, "prompt": "a", "max_tokens": 80, "ignore_eos": True, "seed": 1, "stream": True}
            text = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60).text
        finally:
            server.stop()
    assert text.endswith("data: [DONE]\n\n")
    assert way.iteration >= STEADY.stop
    return way


def num_lines(files: set[str]) -> int:
    return sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files)


def test_the_table_names_the_files_that_a_token_passes(way: Way):
    passed = way.files()
    assert sorted(passed - documented("CPU")) == [], "passed, and not in the table"
    assert sorted(documented("CPU") - passed) == [], "in the table, and not passed"


def test_a_reader_meets_few_files():
    assert {kind: len(documented(kind)) for kind in MOST_FILES} == MOST_FILES


def test_a_reader_meets_few_lines(way: Way):
    lines = {kind: num_lines(documented(kind)) for kind in MOST_FILES}
    print(f"a token passes files of {lines} lines, and on a CPU runs {way.num_lines()} of them")
    assert all(lines[kind] <= most for kind, most in MOST_LINES.items()), lines
    assert way.num_lines() <= MOST_LINES_RUN
