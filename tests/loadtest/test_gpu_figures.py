import json
from pathlib import Path

import pytest

from loadtest.gpu_figures import FIGURES, figures_table, read_results
from service.models.model_config import load_model_config
from service.models.registry import build_model

SHAPES = Path(__file__).parents[2] / "loadtest" / "shapes"
LATENCY_ROW = {"batch_size": 8, "step_ms": 4.2, "step_limit_ms": 3.6, "slope_ms": 3.5e-5, "slope_limit_ms": 3.1e-5}
LATENCY = {"bench": "latency", "model": "llama-8b", "input_len": 128, "rows": [LATENCY_ROW]}
THROUGHPUT = {
    "bench": "throughput",
    "model": "llama-8b",
    "workload": "prefill",
    "seconds": 10.0,
    "limit_s": 8.0,
    "tokens_per_s": 40000.0,
    "requests_per_s": 20.0,
}
KERNELS = {
    "bench": "kernels",
    "kernels": [{"name": "sample_tokens, top_k 50, top_p 0.9", "rows": 256, "microseconds": 380.0, "share": 0.04}],
    "paged_attention_decode": [
        {"model": "Llama-8B", "work": "64 x 2048", "share": 0.96},
        {"model": "Llama-8B", "work": "32 x 1024", "share": 0.9},
        {"model": "Llama-8B", "work": "1 x 128", "share": 0.01},
        {"model": "Llama-8B", "work": "64 x 64..4096", "share": 0.02},
    ],
    "paged_attention_prefill": [
        {"model": "Llama-8B", "work": "8192 / 8192", "rate": 490e12, "share": 0.7, "dense_rate": 537e12}
    ],
}


def lines_of(*results):
    return {line.split("  ")[0]: line.split()[-5:] for line in figures_table(results).splitlines()}


def test_ours_beside_vllm_the_goal_and_the_limit():
    lines = lines_of(LATENCY, THROUGHPUT, KERNELS)
    assert lines["Llama-8B decode step, batch 8, ms"] == ["5.06", "<=", "4.35", "3.60", "met"]
    assert lines["Llama-8B prefill, 300 x 2048, tok/s"] == ["42,400", ">=", "43,000", "50,000", "missed"]
    assert lines["decode attention from 32k tokens, % of a copy"] == ["-", ">=", "85", "100", "met"]
    assert lines["prefill attention 8k, Triton, TFLOP/s"] == ["-", ">=", "350", "700", "met"]
    assert lines["prefill attention 8k, dense, TFLOP/s"] == ["-", ">=", "500", "700", "met"]
    assert lines["sampler, 256 rows, top-k and top-p, ms"] == ["-", "<=", "0.40", "0.02", "met"]


def test_figures_without_a_result_have_no_line():
    assert list(lines_of(LATENCY)) == ["one H200", "Llama-8B decode step, batch 8, ms"]
    row = {**LATENCY_ROW, "batch_size": 1}
    assert len(lines_of({**LATENCY, "rows": [row]})) == 3, "the step and its slope"
    assert len(lines_of({**LATENCY, "rows": [{**row, "slope_ms": None}]})) == 2


def test_a_row_in_which_no_step_was_measured_has_no_line():
    row = {**LATENCY_ROW, "step_ms": None, "slope_ms": None}
    assert len(lines_of({**LATENCY, "rows": [row]})) == 1


def test_reads_the_json_among_what_was_printed_and_the_latest_counts(tmp_path):
    newer = {**LATENCY, "rows": [{**LATENCY_ROW, "step_ms": 4.1}]}
    (tmp_path / "a.txt").write_text(f"batch  step ms\n{json.dumps(LATENCY)}\n{{}}\n")
    (tmp_path / "b.txt").write_text(json.dumps(newer))
    results = read_results([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert results == [newer, LATENCY]
    assert "4.10" in figures_table(results)


def test_every_figure_has_a_title_of_its_own():
    assert len({figure.title for figure in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize(("name", "billions"), [("llama-8b", 8.03), ("qwen3-0.6b", 0.6), ("llama-135m", 0.13)])
def test_the_shapes_are_those_of_the_models(name, billions):
    model = build_model(load_model_config(SHAPES / name))
    assert round(sum(p.numel() for p in model.parameters()) / 1e9, 2) == billions
