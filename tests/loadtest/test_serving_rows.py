import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from loadtest.model_shapes import LLAMA_8B, read_shape, shape_folder
from loadtest.serving_rows import ROWS, Target
from loadtest.serving_table import SERVER_OPTIONS
from loadtest.workload import draw, named
from service.models.context_length import context_length
from service.models.model_config import load_model_config
from service.settings.token_count import TokenCount


def test_rows_name_earlier_ones_as_those_whose_prompts_they_send_again() -> None:
    for rows in ROWS.values():
        for number, row in enumerate(rows):
            assert not row.prompts_of or row.prompts_of in {earlier.name for earlier in rows[:number]}


def test_verdicts() -> None:
    assert Target("t", "k", goal=5.0).verdict(5.0) == "met"
    assert Target("t", "k", goal=5.0).verdict(5.1) == "missed"
    assert Target("t", "k", goal=5.0, less_is_better=False).verdict(4.9) == "missed"
    assert Target("t", "k").verdict(1.0) == ""


def test_every_row_can_be_drawn() -> None:
    for model, rows in ROWS.items():
        assert read_shape(model)["vocab_size"] > 1000
        for row in rows:
            assert named(row.workload)
            assert row.targets


def test_the_server_takes_the_longest_request_of_every_row() -> None:
    for model, rows in ROWS.items():
        options = dict(pairwise(SERVER_OPTIONS.get(model, ())))
        wanted = options.get("--max-model-len", str(read_shape(model)["max_position_embeddings"]))
        longest = context_length(
            load_model_config(shape_folder(model)), TypeAdapter(TokenCount).validate_python(wanted)
        )
        for row in rows:
            requests = draw(named(row.workload), row.num_requests, row.seed)
            assert max(request.prompt_len + request.output_len for request in requests) <= longest


@pytest.mark.parametrize(("workload", "vllms"), [("orca", 18_500 / 280), ("sharegpt", 25_800 / 85)])
def test_a_bursts_answers_are_as_long_as_vllms(workload: str, vllms: float) -> None:
    bursts = [row for rows in ROWS.values() for row in rows if row.workload == workload and row.request_rate is None]
    assert len(bursts) == 2
    for row in bursts:
        figures = {target.key: target.vllm for target in row.targets}
        if "output_throughput" in figures:
            assert figures["output_throughput"] / figures["request_throughput"] == pytest.approx(vllms, rel=0.005)
        requests = draw(named(workload), row.num_requests, row.seed)
        assert sum(request.output_len for request in requests) / len(requests) == pytest.approx(vllms, rel=0.005)


def test_the_script_for_two_gpus_names_rows_and_files_that_are_there() -> None:
    root = Path(__file__).parents[2]
    script = (root / "loadtest/two_gpus.sh").read_text()
    named = re.search(r"--rows (.*?) --server-args", script.replace("\\\n", " "))
    assert named is not None
    assert set(shlex.split(named.group(1))) <= {row.name for row in ROWS[LLAMA_8B]}
    files = re.findall(r"\b(?:tests|loadtest/shapes)/[\w/.-]+\w", script)
    assert len(files) > 6
    assert all((root / file).exists() for file in files)
