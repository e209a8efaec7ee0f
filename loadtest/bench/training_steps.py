"""Where the time of a training's micro-batch goes: launches, kernels, idle device.

`python -m loadtest.bench.training_steps [FOLDER]`: by default the shape of Llama-3-8B, with dummy weights, on this
machine's device. For each case, and for each part of a micro-batch (forward, loss, backward, the optimizer's step):

    wall      elapsed time from the first launch to the last result, without the profiler
    launching the host's part of it; if that is nearly all, the device waits for launches
    kernels   total device time of the kernels, by torch's profiler, and their number
    idle      time in which no kernel runs, between the first one's start and the last one's end, as profiled

and then the kernels that take longest. Each part is waited for, so together they take a little longer than a step does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from loadtest.bench.dummy_training import dummy_model, new_training
from loadtest.model_shapes import LLAMA_8B, shape_folder
from loadtest.table import aligned, format_figure
from service.finetune.lora_training import LoraTraining
from service.models.causal_lm import CausalLM
from service.models.model_config import load_model_config

_WARM_STEPS = 4
"""Steps that are not counted: kernels are compiled, CUDA graphs are captured."""
_TIMED_STEPS = 3


class Case(NamedTuple):
    """num_sequences: per optimizer step; each is a micro-batch. targets: linears with an adapter; empty: all."""

    num_sequences: int
    num_tokens: int
    rank: int
    targets: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.num_sequences} x {self.num_tokens}, rank {self.rank}, {', '.join(self.targets) or 'all linears'}"


CASES = (Case(1, 256, 64, ("q_proj", "v_proj")), Case(8, 512, 16), Case(4, 2048, 16))


class Kernel(NamedTuple):
    """All launches of one kernel name in a part. number, ms: per run of the part."""

    name: str
    number: float
    ms: float


@dataclass(frozen=True, slots=True)
class Part:
    """Milliseconds of one part of a micro-batch. kernels: longest first."""

    name: str
    wall_ms: float
    launching_ms: float
    kernels_ms: float
    num_kernels: float
    idle_ms: float
    kernels: Sequence[Kernel] = field(repr=False)


def measure(
    model: CausalLM, case: Case, vocab_size: int, num_layers: int, num_rows: int, *, enforce_eager: bool
) -> list[Part]:
    """num_rows: how many of the longest kernels to report per part."""
    num_steps = _WARM_STEPS + 2 * _TIMED_STEPS
    shape = (num_steps * case.num_sequences, case.num_tokens)
    ids = np.random.default_rng(0).integers(3, vocab_size, shape, dtype=np.int32)
    training = new_training(
        model,
        ids,
        batch_size=case.num_sequences,
        rank=case.rank,
        targets=case.targets,
        enforce_eager=enforce_eager,
    )
    num_loss_steps = training.layer_steps_per_iteration - 2 * num_layers - 1
    parts = {"forward": num_layers, "loss": num_loss_steps, "backward": num_layers, "optimizer": 1}
    training.advance(_WARM_STEPS * case.num_sequences * training.layer_steps_per_iteration)
    _synchronize()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
    for _ in range(_TIMED_STEPS):
        _advance_to_last(training, case)
        for name, num_layer_steps in parts.items():
            times[name].append(_timed(training, num_layer_steps))
    profiles: dict[str, list[Any]] = {name: [] for name in parts}
    for _ in range(_TIMED_STEPS):
        _advance_to_last(training, case)
        for name, num_layer_steps in parts.items():
            profiles[name].append(_profiled(training, num_layer_steps))
    return [_part(name, times[name], profiles[name], num_rows) for name in parts]


def _advance_to_last(training: LoraTraining, case: Case) -> None:
    """Advance to the step's last micro-batch, after which the optimizer steps."""
    training.advance((case.num_sequences - 1) * training.layer_steps_per_iteration)
    _synchronize()


def _timed(training: LoraTraining, num_layer_steps: int) -> tuple[float, float]:
    """Seconds until everything is computed, and of these the seconds until it is launched."""
    began_s = time.perf_counter()
    training.advance(num_layer_steps)
    launched_s = time.perf_counter()
    _synchronize()
    return time.perf_counter() - began_s, launched_s - began_s


def _profiled(training: LoraTraining, num_layer_steps: int) -> list[Any]:
    """Events of what was computed: kernels; on a CPU torch's operators."""
    activity = torch.profiler.ProfilerActivity
    is_gpu = torch.cuda.is_available()
    with torch.profiler.profile(activities=[activity.CUDA if is_gpu else activity.CPU]) as profile:
        training.advance(num_layer_steps)
        _synchronize()
    device = "CUDA" if is_gpu else "CPU"
    return [event for event in profile.events() or () if event.device_type.name == device]


def _part(name: str, times: Sequence[tuple[float, float]], profiles: Sequence[Sequence[Any]], num_rows: int) -> Part:
    wall_s, launching_s = min(times)
    by_name: dict[str, list[float]] = {}
    for event in (event for events in profiles for event in events):
        by_name.setdefault(event.name, []).append(_own_us(event) / 1e3)
    kernels = [Kernel(key, len(all_ms) / len(profiles), sum(all_ms) / len(profiles)) for key, all_ms in by_name.items()]
    kernels.sort(key=lambda kernel: -kernel.ms)
    return Part(
        name,
        1e3 * wall_s,
        1e3 * launching_s,
        sum(kernel.ms for kernel in kernels),
        sum(kernel.number for kernel in kernels),
        min(map(idle_ms, profiles)),
        kernels[:num_rows],
    )


def _own_us(event: Any) -> float:
    return float(event.time_range.elapsed_us() if torch.cuda.is_available() else event.self_cpu_time_total)


def idle_ms(events: Sequence[Any]) -> float:
    """Time between the first event's start and the last one's end in which there is no event. events: have a
    `time_range` in microseconds."""
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    idle_us, reached = 0.0, spans[0][0] if spans else 0.0
    for start, end in spans:
        idle_us += max(0.0, start - reached)
        reached = max(reached, end)
    return idle_us / 1e3


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(parts: Sequence[Part]) -> str:
    rows = [["part", "wall, ms", "launching", "kernels", "number", "idle"]]
    for part in parts:
        figures = (part.wall_ms, part.launching_ms, part.kernels_ms, part.num_kernels, part.idle_ms)
        rows.append([part.name, *map(format_figure, figures)])
    return aligned(rows)


def kernel_table(part: Part) -> str:
    rows = [[part.name, "number", "us each", "ms"]]
    for kernel in part.kernels:
        figures = (kernel.number, 1e3 * kernel.ms / kernel.number, kernel.ms)
        rows.append([kernel.name[:100], *map(format_figure, figures)])
    return aligned(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.training_steps", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=shape_folder(LLAMA_8B))
    parser.add_argument("--case", type=int, nargs="+", default=range(len(CASES)), help="cases by index; default: all")
    parser.add_argument("--tokens", type=int, help="tokens per micro-batch; default: the case's own")
    parser.add_argument("--kernels", type=int, default=14, metavar="N", help="longest kernels to list per part")
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    chosen = parser.parse_args(arguments)
    cases = [CASES[at]._replace(**{"num_tokens": chosen.tokens} if chosen.tokens else {}) for at in chosen.case]
    config = load_model_config(chosen.folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = dummy_model(chosen.folder, torch.bfloat16, device, max(case.num_tokens for case in cases))
    results = []
    for case in cases:
        num_rows, eager = chosen.kernels, chosen.enforce_eager
        parts = measure(model, case, config.vocab_size, config.num_layers, num_rows, enforce_eager=eager)
        print(f"\n{case}\n{table(parts)}", file=sys.stderr)
        for part in parts:
            print(f"\n{kernel_table(part)}", file=sys.stderr)
        results.append({"case": str(case), "parts": [asdict(part) for part in parts]})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
