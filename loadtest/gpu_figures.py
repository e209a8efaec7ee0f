"""The target figures on one H200, read from the output of `python -m loadtest.bench`.

`python -m loadtest.gpu_figures FILE ...` reads every line of JSON in the files. vLLM's column is vLLM 0.24.0 with its
defaults on the same machine, over HTTP; ours is without HTTP. The limit is computed from the model's bytes and
operations and the device's measured rates.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.model_shapes import LLAMA_8B as LLAMA
from loadtest.model_shapes import QWEN3_06B as QWEN3
from loadtest.table import aligned

Result = Mapping[str, Any]
"""One line of a benchmark's JSON output."""

Reading = tuple[float, float | None]
"""(ours, limit); the limit is None if unknown."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. read: finds the figure in the results; None if they do not have it."""

    title: str
    read: Callable[[Sequence[Result]], Reading | None]
    goal: float
    vllm: float | None = None
    less_is_better: bool = True
    digits: int = 2

    def cells(self, reading: Reading) -> list[str]:
        ours, limit = reading
        is_met = ours <= self.goal if self.less_is_better else ours >= self.goal
        sign = "<=" if self.less_is_better else ">="
        return [
            self.title,
            self._text(ours),
            "-" if self.vllm is None else self._text(self.vllm),
            f"{sign} {self._text(self.goal)}",
            "-" if limit is None else self._text(limit),
            "met" if is_met else "missed",
        ]

    def _text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


def decode_step_ms(model: str, batch_size: int, input_len: int = 128) -> Callable[[Sequence[Result]], Reading | None]:
    def read(results: Sequence[Result]) -> Reading | None:
        row = _latency_row(results, model, batch_size, input_len)
        return None if row is None or row["step_ms"] is None else (row["step_ms"], row["step_limit_ms"])

    return read


def slope_ns(model: str) -> Callable[[Sequence[Result]], Reading | None]:
    """Nanoseconds that one more token of context adds to a decode step of one sequence."""

    def read(results: Sequence[Result]) -> Reading | None:
        row = _latency_row(results, model, 1, 128)
        return None if row is None or row["slope_ms"] is None else (1e6 * row["slope_ms"], 1e6 * row["slope_limit_ms"])

    return read


def throughput(model: str, workload: str, key: str) -> Callable[[Sequence[Result]], Reading | None]:
    """A workload's rate. key: requests_per_s or tokens_per_s."""

    def read(results: Sequence[Result]) -> Reading | None:
        for result in results:
            if (result["bench"], result.get("model"), result.get("workload")) == ("throughput", model, workload):
                return result[key], result[key] * result["seconds"] / result["limit_s"]
        return None

    return read


def kernel_ms(name: str, rows: int) -> Callable[[Sequence[Result]], Reading | None]:
    """Milliseconds of a kernel. The limit is the time for moving its bytes."""

    def read(results: Sequence[Result]) -> Reading | None:
        for kernel in _of_kernels(results, "kernels"):
            if (kernel["name"], kernel["rows"]) == (name, rows):
                return kernel["microseconds"] / 1e3, kernel["microseconds"] * kernel["share"] / 1e3
        return None

    return read


def least_decode_share(min_tokens: int) -> Callable[[Sequence[Result]], Reading | None]:
    """The lowest rate in percent of a copy's, over batches of equal contexts with at least `min_tokens` in all."""

    def read(results: Sequence[Result]) -> Reading | None:
        shares = []
        for point in _of_kernels(results, "paged_attention_decode"):
            batch, times, context = point["work"].partition(" x ")
            if times and batch.isdigit() and context.isdigit() and int(batch) * int(context) >= min_tokens:
                shares.append(100 * point["share"])
        return (min(shares), 100.0) if shares else None

    return read


def prefill_attention_tflops(key: str) -> Callable[[Sequence[Result]], Reading | None]:
    """TFLOP/s at 8k tokens, causal, Llama-8B's shape. key: rate or dense_rate."""

    def read(results: Sequence[Result]) -> Reading | None:
        for point in _of_kernels(results, "paged_attention_prefill"):
            if (point["model"], point["work"]) == ("Llama-8B", "8192 / 8192") and point[key] is not None:
                return point[key] / 1e12, point["rate"] / point["share"] / 1e12
        return None

    return read


FIGURES = (
    Figure("Llama-8B decode step, batch 1, ms", decode_step_ms(LLAMA, 1), 4.25, 4.94),
    Figure("Llama-8B decode step, batch 8, ms", decode_step_ms(LLAMA, 8), 4.35, 5.06),
    Figure("Llama-8B decode step, batch 64, ms", decode_step_ms(LLAMA, 64), 5.3, 6.21),
    Figure("Llama-8B decode step, batch 256, ms", decode_step_ms(LLAMA, 256), 10.6, 12.4),
    Figure("Llama-8B decode step, batch 64 at 2k, ms", decode_step_ms(LLAMA, 64, 2016), 9.2),
    Figure("Llama-8B a token of context adds, batch 1, ns", slope_ns(LLAMA), 36, digits=1),
    Figure("Llama-8B prefill, 300 x 2048, tok/s", throughput(LLAMA, "prefill", "tokens_per_s"), 43e3, 42.4e3, False, 0),
    Figure("Llama-8B orca, 1000, req/s", throughput(LLAMA, "orca", "requests_per_s"), 115, 110, False, 1),
    Figure("Llama-8B sharegpt, 1000, req/s", throughput(LLAMA, "sharegpt", "requests_per_s"), 65, 54.7, False, 1),
    Figure("Qwen3-0.6B decode step, batch 1, ms", decode_step_ms(QWEN3, 1), 1.1, 1.62),
    Figure("Qwen3-0.6B decode step, batch 64, ms", decode_step_ms(QWEN3, 64), 1.8, 2.54),
    Figure("Qwen3-0.6B decode step, batch 256, ms", decode_step_ms(QWEN3, 256), 5.0, 8.6),
    Figure("Qwen3-0.6B orca, 1000, req/s", throughput(QWEN3, "orca", "requests_per_s"), 400, 280, False, 0),
    Figure("Qwen3-0.6B sharegpt, 1000, req/s", throughput(QWEN3, "sharegpt", "requests_per_s"), 150, 85, False, 0),
    Figure("decode attention from 32k tokens, % of a copy", least_decode_share(32768), 85, None, False, 0),
    Figure("prefill attention 8k, Triton, TFLOP/s", prefill_attention_tflops("rate"), 350, None, False, 0),
    Figure("prefill attention 8k, dense, TFLOP/s", prefill_attention_tflops("dense_rate"), 500, None, False, 0),
    Figure("sampler, 256 rows, top-k and top-p, ms", kernel_ms("sample_tokens, top_k 50, top_p 0.9", 256), 0.4),
)


def figures_table(results: Sequence[Result]) -> str:
    """One line per figure that the results have."""
    lines = [["one H200", "ours", "vLLM", "goal", "limit", ""]]
    for figure in FIGURES:
        reading = figure.read(results)
        if reading is not None:
            lines.append(figure.cells(reading))
    return aligned(lines, left=(0, 5))


def read_results(files: Sequence[Path]) -> list[Result]:
    """Every line that is a JSON object with the key `bench`, latest first."""
    results = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("{") and "bench" in (result := json.loads(line)):
                results.append(result)
    return results[::-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="output of `python -m loadtest.bench`")
    print(figures_table(read_results(parser.parse_args().files)))


def _latency_row(results: Sequence[Result], model: str, batch_size: int, input_len: int) -> Result | None:
    for result in results:
        if (result["bench"], result.get("model"), result.get("input_len")) == ("latency", model, input_len):
            for row in result["rows"]:
                if row["batch_size"] == batch_size:
                    return dict(row)
    return None


def _of_kernels(results: Sequence[Result], key: str) -> list[Result]:
    return next((result[key] for result in results if result["bench"] == "kernels"), [])


if __name__ == "__main__":
    main()
