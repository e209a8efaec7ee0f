"""Who may import whom, read from the source: as docs/architecture.md's map has it, and no cycles."""

from __future__ import annotations

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVERYONE_MAY = {"core", "config", "errors"}

OURS = {
    "core": {"core", "errors"},
    "config": set(),
    "errors": set(),
    "settings": {"config", "errors"},
    "cli": {"composition", "core", "errors", "settings", "main", "process", "chat_client", "doctor"},
    "doctor": {"composition", "settings", "models", "layers", "kvcache", "runner", "text", "process", *EVERYONE_MAY},
    "kv_events": EVERYONE_MAY,
    "ray_serve": {"api", "distributed", "settings", *EVERYONE_MAY},
    "__main__": {"cli"},
    "http": EVERYONE_MAY,
    "process": {"core", "engine", "errors"},
    "protocol": {"errors"},
    "text": {"protocol", "core", "errors"},
    "metrics": EVERYONE_MAY,
    "storage": {"core", "errors"},
    "batch_jobs": {"storage", "core", "errors"},
    "api": {"protocol", "text", "engine", "metrics", "storage", "batch_jobs", "finetune", *EVERYONE_MAY},
    "engine": {"scheduler", "prediction", "kvcache", *EVERYONE_MAY},
    "scheduler": {"prediction", "kvcache", *EVERYONE_MAY},
    "prediction": EVERYONE_MAY,
    "kvcache": EVERYONE_MAY,
    "distributed": {"engine", "runner", "layers", "lora", "finetune", "process", *EVERYONE_MAY},
    "hosts": {"distributed", *EVERYONE_MAY},
    "runner": {"models", "layers", "lora", "sampling", "kernels", *EVERYONE_MAY},
    "models": {"layers", "kernels", *EVERYONE_MAY},
    "lora": {"layers", "kernels", *EVERYONE_MAY},
    "finetune": {"models", "layers", "lora", "kernels", "text", "protocol", "storage", *EVERYONE_MAY},
    "layers": {"kernels", "core", "errors"},
    "sampling": {"kernels", "core", "errors"},
    "structured": {"text", "core", "errors"},
    "kernels": set(),
    "bench": {
        "loadtest",
        "kernels",
        "layers",
        "lora",
        "composition",
        "distributed",
        "engine",
        "finetune",
        "metrics",
        "models",
        "process",
        "runner",
        "settings",
        "structured",
        "text",
        *EVERYONE_MAY,
    },
    "quickstart": {"settings"},
    "facts": {"quickstart", "loadtest"},
    "chat_client": set(),
    "loadtest": set(),
    "offline": {"loadtest"},
    "baselines": {"offline", "loadtest", "engine", "scheduler", "prediction", "kvcache", *EVERYONE_MAY},
    "capacity": {
        "baselines",
        "offline",
        "loadtest",
        "engine",
        "models",
        "runner",
        "scheduler",
        "prediction",
        *EVERYONE_MAY,
        "kvcache",
    },
    "scenarios": {
        "baselines",
        "offline",
        "loadtest",
        "bench",
        "chat_client",
        "finetune",
        "models",
        "runner",
        "scheduler",
        "prediction",
        "text",
        *EVERYONE_MAY,
    },
}
"""What of the house each part may import, besides itself. `main` and `composition` join all: not in the table."""

THIRD_PARTY = {
    "core": {"numpy"},
    "config": set(),
    "errors": set(),
    "settings": {"pydantic", "pydantic_settings", "yaml"},
    "cli": set(),
    "doctor": {"torch", "huggingface_hub"},
    "http": {"uvicorn", "httptools", "orjson", "starlette"},
    "process": {"orjson"},
    "protocol": {"pydantic", "pydantic_core"},
    "text": {"tokenizers", "jinja2", "orjson", "pydantic_core"},
    "metrics": {"prometheus_client"},
    "api": {"starlette", "sse_starlette", "pydantic", "pydantic_core", "orjson", "prometheus_client", "opentelemetry"},
    "engine": set(),
    "scheduler": {"numpy"},
    "prediction": set(),
    "kvcache": set(),
    "kv_events": {"zmq", "msgpack"},
    "ray_serve": {"ray", "starlette", "httpx", "orjson", "pydantic", "prometheus_client"},
    "storage": set(),
    "batch_jobs": {"orjson"},
    "distributed": {"torch", "numpy"},
    "hosts": set(),
    "runner": {"torch", "numpy", "pydantic", "pydantic_core"},
    "models": {"torch", "safetensors", "numpy", "huggingface_hub", "transformers"},
    "lora": {"torch", "numpy", "pydantic_core"},
    "finetune": {"torch", "numpy", "safetensors", "orjson", "pydantic"},
    "layers": {"torch"},
    "sampling": {"torch"},
    "structured": {"llguidance", "numpy"},
    "bench": {"numpy", "torch", "triton", "prometheus_client"},
    "chat_client": {"prompt_toolkit", "rich"},
    "capacity": {"pydantic"},
    "kernels": {"torch", "triton", "numba", "llvmlite", "numpy"},
}
"""Packages that each part may import besides the standard library; parts that are not named are free."""


PARTS_OF_LOADTEST = {"bench", "quickstart", "facts", "offline", "baselines", "capacity", "scenarios"}
ROOMS_OF_THE_API = {
    "middleware": set(),
    "calls": set(),
    "answers": {"calls"},
    "endpoints": {"calls", "answers"},
}
"""Rooms of `api` that each room may import, besides itself and what lies before them all; that imports no room."""
DOORS_OF_THE_API = {"app.py", "batch_calls.py"}
"""From here whoever is let in is led past the middleware to an endpoint."""


def part_of(module: str) -> str | None:
    """The part of the house that a dotted name belongs to; None if it is somebody else's."""
    head, *rest = module.split(".")
    if head == "service":
        return rest[0] if rest else None
    if head == "loadtest" and rest and rest[0] in PARTS_OF_LOADTEST:
        return rest[0]
    return head if head in {"kernels", "loadtest"} else None


@cache
def imports_of(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            names.append(node.module)
    return names


@cache
def source_files() -> list[Path]:
    return [f for top in ("service", "kernels", "loadtest") for f in sorted((ROOT / top).rglob("*.py"))]


def module_name(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FRAMES_OF_THEIR_OWN = {
    "loadtest/host_server.py",
    "loadtest/scrape_cost.py",
    "loadtest/compare_peft.py",
    "loadtest/parity/command.py",
    "loadtest/finetune_quality.py",
    "loadtest/deciding_cost.py",
    "loadtest/frame_cost.py",
    "loadtest/stream_cost.py",
    "loadtest/metrics_reference.py",
    "loadtest/speculation_gain.py",
}
"""They put parts of the service together in a way of their own."""


def forbidden_imports(file: Path) -> list[str]:
    """What the part that the file belongs to may not import, as the table has it."""
    part = part_of(module_name(file))
    if part in {None, "main", "composition"} or str(file.relative_to(ROOT)) in FRAMES_OF_THEIR_OWN:
        return []
    return [name for name in imports_of(file) if not may_import(part, name)]


def may_import(part: str, name: str) -> bool:
    imported = part_of(name)
    if imported is not None:
        return imported == part or imported in OURS[part]
    package = name.split(".")[0]
    return part not in THIRD_PARTY or package in sys.stdlib_module_names or package in THIRD_PARTY[part]


def test_imports_point_one_way():
    assert {str(file): wrong for file in source_files() if (wrong := forbidden_imports(file))} == {}


def test_an_import_that_points_the_other_way_is_found():
    assert not may_import("core", "service.engine.engine")
    assert not may_import("core", "torch")
    assert may_import("core", "service.errors")
    assert may_import("core", "json")


def room_of(module: str) -> str | None:
    """The room of `api` that a dotted name belongs to; None if it is in none."""
    head, _, rest = module.removeprefix("service.api.").partition(".")
    return head if rest and module.startswith("service.api.") else None


def test_the_rooms_of_the_api_have_one_direction():
    for file in sorted((ROOT / "service/api").rglob("*.py")):
        room = room_of(module_name(file))
        allowed = set(ROOMS_OF_THE_API) if file.name in DOORS_OF_THE_API else {room, *ROOMS_OF_THE_API.get(room, ())}
        rooms = {room_of(name) for name in imports_of(file)} - {None}
        assert rooms <= allowed, f"{file} may not import {rooms - allowed}"


def test_nobody_but_the_command_line_imports_the_composition_root():
    for file in source_files():
        for name in imports_of(file):
            if part_of(name) == "main":
                assert file.name in {"cli.py", "host_server.py", "scrape_cost.py"}
            if part_of(name) == "composition":
                assert file.name in {
                    "main.py",
                    "cli.py",
                    "offline_bench.py",
                    "speculation_gain.py",
                } or file.parent.name in {
                    "composition",
                    "doctor",
                }


def test_what_serves_needs_nothing_of_what_measures_it():
    for file in source_files():
        if file.is_relative_to(ROOT / "service") or file.is_relative_to(ROOT / "kernels"):
            assert [name for name in imports_of(file) if name.split(".")[0] == "loadtest"] == [], file


def test_there_is_no_cycle():
    modules = {module_name(file): file for file in source_files()}
    graph = {name: {i for i in imports_of(file) if i in modules and i != name} for name, file in modules.items()}
    # cli runs main at a command, and main never imports cli back
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)


def test_every_package_has_a_door_plate_and_no_code_in_it():
    for file in source_files():
        if file.name == "__init__.py":
            body = ast.parse(file.read_text()).body
            assert len(body) == 1, f"{file}: a docstring only"
            assert isinstance(body[0], ast.Expr)
            assert isinstance(body[0].value, ast.Constant)
