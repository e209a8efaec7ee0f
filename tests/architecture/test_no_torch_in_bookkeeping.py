"""Scheduler, KV bookkeeping and engine run on a laptop: importing them brings in no torch, nor anything heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "service"
BOOKKEEPING = ("core", "engine", "scheduler", "prediction", "kvcache")
HEAVY = {"torch", "triton", "transformers", "starlette", "pydantic", "tokenizers"}


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(output.split())


def test_bookkeeping_is_plain_python():
    files = [file for part in BOOKKEEPING for file in sorted((SERVICE / part).glob("*.py"))]
    assert len(files) > 30
    loaded = modules_after("import " + ", ".join(f"service.{file.parent.name}.{file.stem}" for file in files))
    assert loaded.isdisjoint(HEAVY)


def test_the_command_line_is_light():
    assert modules_after("import service.cli").isdisjoint(HEAVY)


def test_a_models_files_are_found_without_loading_it():
    assert modules_after("import service.models.model_folder").isdisjoint(HEAVY)


def test_a_model_folder_is_checked_without_torch():
    loaded = modules_after("import service.composition.start_checks, service.settings.reader")
    assert loaded.isdisjoint(HEAVY - {"pydantic"})


def test_nothing_of_the_service_loads_transformers():
    loaded = modules_after("import service.main, service.runner.load")
    assert "torch" in loaded
    assert "transformers" not in loaded
