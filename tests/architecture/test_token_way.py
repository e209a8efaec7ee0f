"""The files that a decode token passes, as docs/architecture.md names them, are those that it is seen to pass."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx
import pytest

from kernels.cpu_loops import cpu_loops
from service.core.iteration_plan import IterationPlan
from service.engine import engine_loop
from service.layers.packed_weight import WeightForm
from service.runner.choices import weight_forms
from service.runner.model_runner import ModelRunner
from tests.api.running_server import MODEL, RunningServer, Scene
from tests.models.checkpoints import llama
from tests.runner.loading import load

ROOT = Path(__file__).parents[2]
MOST_FILES = {"GPU": 32, "CPU": 35}
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
    within `watching`. iteration: the number of the present one."""

    def __init__(self) -> None:
        self.iteration = 0
        self._seen: defaultdict[str, set[int]] = defaultdict(set)

    def files(self) -> set[str]:
        """What is passed again and again: not what comes by the clock, as a look at idle work does."""
        return {name for name, iterations in self._seen.items() if len(iterations) >= OFTEN}

    @contextmanager
    def watching(self) -> Iterator[None]:
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self.iteration in STEADY and event == "call":
            name = frame.f_code.co_filename
            if name == "<string>":  # made by a NamedTuple or dataclass
                made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
                name = f"{ROOT}/{made.__module__.replace('.', '/')}.py"
            if name.startswith(f"{ROOT}/service/"):
                self._seen[name.removeprefix(f"{ROOT}/")].add(self.iteration)


def documented(*kinds: str) -> set[str]:
    """Files in the table's rows, of those that are of one kind of device only those of `kinds`."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## The files that a decode token passes")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "`service/" in line]
    of_kind = [row for row in rows if all(kind in kinds for kind in ("GPU", "CPU") if f"on a {kind}" in row)]
    return {name for row in of_kind for name in re.findall(r"`(service/[\w/]+\.py)`", row)}


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    if cpu_loops() is None:
        pytest.skip("this machine runs no compiled loops")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_forms, "_fastest", lambda both, timer: WeightForm.BOTH)
        loaded = load(llama(tmp_path_factory.mktemp("model"), head_dim=32), "bfloat16", block_size=4, max_num_seqs=4)
        patch.setattr(engine_loop, "SNAPSHOT_EVERY_S", math.inf)
        patch.setattr(engine_loop, "CATCH_UP_EVERY_S", math.inf)
        return _files_passed(loaded.runner)


def _files_passed(runner: ModelRunner) -> set[str]:
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
    return {name for name in way.files() if not name.startswith(BESIDE)}


def test_the_table_names_the_files_that_a_token_passes(passed: set[str]):
    assert sorted(passed - documented("CPU")) == [], "passed, and not in the table"
    assert sorted(documented("CPU") - passed) == [], "in the table, and not passed"


def test_a_reader_meets_few_files():
    assert {kind: len(documented(kind)) for kind in MOST_FILES} == MOST_FILES
