"""The cost of LoRA adapters on one H200, over HTTP: each row beside the same server's base model and the goal.

`python -m loadtest.lora_table [--model llama-8b] [--adapters 64] [--rank 16]` makes random adapters of all linears and
starts three servers, one after the other: without adapters, with all of them on the device, and with room for a quarter
of them. Takes about five minutes.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from loadtest.metrics import without_long_arrays
from loadtest.model_shapes import LLAMA_8B, plain_ids_end, read_shape
from loadtest.random_adapters import make_adapters
from loadtest.runner import default_num_processes
from loadtest.serving_rows import ANSWERS_LIKE_VLLMS, SEED, Row
from loadtest.serving_table import measure, served
from loadtest.table import aligned, format_figure

SERVERS = ("resident", "evicting")

TPOT, TTFT, RATE = "median_tpot_ms", "median_ttft_ms", "request_throughput"


@dataclass(frozen=True, slots=True)
class LoraRow:
    """num_adapters: requests take turns at this many adapters; 0: all use the base model. goal: the most that `key` may
    be, as a multiple of the base's (for RATE the least). beyond: goal is in ms instead, to be added to the base's."""

    workload: str
    num_requests: int
    num_adapters: int
    key: str
    goal: float
    beyond: bool = False
    request_rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.num_requests} requests"

    def for_base(self) -> "LoraRow":
        return replace(self, num_adapters=0)

    def row(self, label: str) -> Row:
        """label: distinguishes this row's prompts from other rows'."""
        seed = ANSWERS_LIKE_VLLMS.get(self.workload, SEED)
        name = f"{self.name}, {self.num_adapters} adapters, {label}"
        return Row(name, self.workload, self.num_requests, (), request_rate=self.request_rate, seed=seed)

    def verdict(self, ours: float, base: float) -> str:
        if self.beyond:
            return "met" if ours <= base + self.goal else "missed"
        return "met" if (ours >= base * self.goal if self.key == RATE else ours <= base * self.goal) else "missed"


def resident_rows(most: int) -> tuple[LoraRow, ...]:
    """Rows where all adapters asked for, at most `most`, are on the device."""
    rows = (
        LoraRow("decode-1", 1, 0, TPOT, 1.005),
        LoraRow("decode-1", 1, 1, TPOT, 1.08),
        LoraRow("decode-64", 64, 0, TPOT, 1.005),
        LoraRow("decode-64", 64, 1, TPOT, 1.06),
        LoraRow("decode-64", 64, 8, TPOT, 1.09),
        LoraRow("decode-64", 64, 64, TPOT, 1.35),
        LoraRow("decode-256", 256, 8, TPOT, 1.07),
        LoraRow("decode-256", 256, 256, TPOT, 1.65),
        LoraRow("prefill", 300, 8, RATE, 0.93),
        LoraRow("orca", 1000, 8, RATE, 0.93),
        LoraRow("sharegpt", 1000, 8, RATE, 0.93),
    )
    return tuple(row for row in rows if row.num_adapters <= most)


def evicting_rows(num_adapters: int) -> tuple[LoraRow, ...]:
    """Rows where a quarter of the adapters is on the device and the others are in host memory."""
    return (
        LoraRow("fixed-128x2", num_adapters, num_adapters, TTFT, 5.0, beyond=True, request_rate=5.0),
        LoraRow("orca", 400, num_adapters, TTFT, 2.0, request_rate=20.0),
    )


def cells(row: LoraRow, ours: float, base: float) -> list[str]:
    """Cells of a table line: row, adapters, figure, base, ours, ratio, goal, verdict."""
    goal = f"+{row.goal:g} ms" if row.beyond else f"{row.goal:g}"
    figures = [format_figure(value) for value in (base, ours, ours / base)]
    return [row.name, str(row.num_adapters), row.key, *figures, goal, row.verdict(ours, base)]


def _measured(
    base_url: str, rows: Sequence[LoraRow], label: str, vocab_size: int, processes: int
) -> list[dict[str, Any]]:
    results = []
    for row in rows:
        models = [f"adapter-{number}" for number in range(row.num_adapters)]
        result = measure(base_url, row.row(label), vocab_size, processes, models=models)
        results.append(without_long_arrays(result))
        print(
            f"{label}: {row.name}, {row.num_adapters} adapters: {row.key} {format_figure(result[row.key])}", flush=True
        )
    return results


def _make_all(model: str, folder: Path, num: int, rank: int) -> None:
    """Make the adapters in parallel, since each takes seconds."""
    make = partial(_make_one, read_shape(model), folder, rank)
    with ProcessPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(make, range(num)))


def _make_one(shape: Any, folder: Path, rank: int, number: int) -> None:
    (made,) = make_adapters(shape, folder / f"made-{number}", 1, rank, seed=number)
    made.rename(folder / f"adapter-{number}")
    made.parent.rmdir()


def main() -> None:
    """Print each figure as it comes, then the table. Save all results, one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=LLAMA_8B, help="a shape of loadtest/shapes")
    parser.add_argument("--adapters", type=int, default=64)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", nargs="+", help="workloads; default: all")
    parser.add_argument(
        "--servers", nargs="+", choices=SERVERS, default=SERVERS, help="servers to measure besides the one without"
    )
    parser.add_argument("--processes", type=int, default=default_num_processes(), help="client processes")
    parser.add_argument("--python", default=sys.executable, help="Python interpreter of the server")
    parser.add_argument("--out", type=Path, default=Path("lora_table.jsonl"))
    parser.add_argument("--server-args", nargs=argparse.REMAINDER, default=[], help="options for the server, last")
    args = parser.parse_args()
    lines = [["row", "adapters", "figure", "base", "ours", "ratio", "goal", ""]]
    with args.out.open("w", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        started_s = time.monotonic()
        _make_all(args.model, Path(folder), args.adapters, args.rank)
        print(f"{args.adapters} adapters made in {time.monotonic() - started_s:.1f} s", flush=True)
        for row, base, ours in _compared(args, Path(folder)):
            lines.append(cells(row, ours[row.key], base[row.key]))
            file.write(json.dumps({"base": base, "ours": ours, "num_adapters": row.num_adapters}) + "\n")
    print(aligned(lines, left=(0, 2)))


def _compared(args: argparse.Namespace, folder: Path) -> Iterator[tuple[LoraRow, dict[str, Any], dict[str, Any]]]:
    """Yields each row with the base model's result and the adapters'."""
    vocab_size = plain_ids_end(read_shape(args.model))

    def measured(rows: Sequence[LoraRow], label: str, options: Sequence[str]) -> list[dict[str, Any]]:
        with served(args.model, args.python, [*options, *args.server_args]) as (base_url, _):
            if label != "without":  # read each adapter from its folder once, before the measurement
                warm = LoraRow("fixed-128x2", args.adapters, args.adapters, TTFT, 0.0)
                _measured(base_url, [warm], f"{label}, first", vocab_size, 1)
            return _measured(base_url, rows, label, vocab_size, args.processes)

    def chosen(rows: Sequence[LoraRow]) -> list[LoraRow]:
        return [row for row in rows if not args.rows or row.workload in args.rows]

    rows_of = {"resident": resident_rows(args.adapters), "evicting": evicting_rows(args.adapters)}
    slots_of = {"resident": args.adapters, "evicting": max(1, args.adapters // 4)}
    chosen_of = {server: chosen(rows_of[server]) for server in args.servers}
    all_chosen = [row for rows in chosen_of.values() for row in rows]
    plain = list(dict.fromkeys(row.name for row in all_chosen))
    of_plain = [next(row for row in all_chosen if row.name == name).for_base() for name in plain]
    base = dict(zip(plain, measured(of_plain, "without", []), strict=True))
    lora = ["--lora-dir", str(folder), "--max-lora-rank", str(args.rank), "--max-cpu-loras", str(args.adapters)]
    for server, rows in chosen_of.items():
        if rows:
            results = measured(rows, server, [*lora, "--max-loras", str(slots_of[server])])
            for row, ours in zip(rows, results, strict=True):
                yield row, base[row.name], ours


if __name__ == "__main__":
    main()
