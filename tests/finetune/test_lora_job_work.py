from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.errors import TrainingDiverged
from service.finetune import lora_job_work
from service.finetune.job import Job, JobSpec
from service.finetune.job_faults import JobFault, job_error
from service.finetune.job_training import JobStopped
from service.finetune.lora_job_work import LoraJobWork, steps_per_checkpoint
from service.finetune.lora_training import LoraTraining
from service.finetune.reading_pace import ReadingPace
from service.finetune.served_base import ServedBase
from service.finetune.training_state import TrainingState
from service.lora.adapter_folder import read_adapter
from service.models.causal_lm import CausalLM
from service.settings.quickstart import QUICKSTART_MODEL
from tests.finetune.model_texts import quickstart
from tests.finetune.served import served_model

SPEC = JobSpec("base", "file-1", num_epochs=2, batch_size=2, rank=4, targets=("q_proj", "v_proj"), seed=3)
LINEARS = frozenset({"q_proj", "v_proj"})
LINES = [{"prompt": "the tower is", "completion": f" blue, {number} times"} for number in range(5)]


@cache
def model() -> CausalLM:
    return served_model(QUICKSTART_MODEL)


def nobody() -> None:
    """Does not stop the work."""


def work(adapters: Mapping[str, Path] | None = None, *, is_serving: bool = False) -> LoraJobWork:
    base = ServedBase(("base", "alias"), "weights", 256, LINEARS, 16, 256, 128)
    return LoraJobWork(model(), quickstart(), base, (adapters or {}).get, is_serving=lambda: is_serving)


def new_job(spec: JobSpec = SPEC) -> Job:
    return Job("ftjob-1", "team", 1, "weights", spec)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def queued(file: Path, spec: JobSpec = SPEC, adapters: Mapping[str, Path] | None = None) -> Job:
    job = new_job(spec)
    return job.validated(work(adapters).validate(job, file, None, nobody))


def run(training: LoraTraining, until_step: int = 100) -> tuple[TrainingState, list[float]]:
    """The state after so many steps, or at the end, and the losses."""
    losses = []
    while not training.is_over:
        training.advance(training.layer_steps_left)
        news = training.take_news()
        losses += [report.loss for report in news.reports]
        if news.reports and news.reports[-1].step == until_step:
            break
    return training.state(), losses


def prepared(job: Job, file: Path, checkpoint: Path, adapters: Mapping[str, Path] | None = None) -> LoraTraining:
    training = work(adapters).prepare(job, file, None, checkpoint, nobody)
    assert isinstance(training, LoraTraining)
    return training


def test_what_a_job_leaves_is_an_adapter_that_can_be_served(file: Path, tmp_path: Path):
    job = queued(file)
    assert job.data is not None
    assert (job.data.num_examples, job.data.num_steps) == (5, 6)
    state, losses = run(prepared(job, file, tmp_path / "none"))
    assert (state.step, len(losses)) == (6, 6)
    assert losses[-1] < losses[0]
    (tmp_path / "model").mkdir()
    work().export(job, state, tmp_path / "model")
    adapter = read_adapter(tmp_path / "model", state.layout.sites, 16, torch.float32)
    matrices = state.matrices()
    assert all(torch.equal(adapter.sites[name].b, matrices[name].b) for name in matrices)
    assert next(iter(adapter.sites.values())).scale == 2.0


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_job_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(file: Path, tmp_path: Path, step: int):
    job, checkpoint = queued(file), tmp_path / "checkpoint"
    whole, _ = run(prepared(job, file, checkpoint))
    state, _ = run(prepared(job, file, checkpoint), step)
    assert state.step == step
    work().save(job, state, checkpoint)
    again, _ = run(prepared(job, file, checkpoint))
    assert torch.equal(again.parameters, whole.parameters)
    assert torch.equal(again.second_moments, whole.second_moments)


def test_it_goes_on_with_what_it_was_begun_with_only(file: Path, tmp_path: Path):
    job, checkpoint = queued(file), tmp_path / "checkpoint"
    state, _ = run(prepared(job, file, checkpoint), 1)
    work().save(job, state, checkpoint)
    with pytest.raises(JobFault, match="checkpoint"):
        prepared(replace(job, job_id="ftjob-2"), file, checkpoint)
    assert job.data is not None
    other = replace(job.data.hyperparameters, learning_rate=0.5)
    with pytest.raises(JobFault, match="checkpoint"):
        prepared(replace(job, data=replace(job.data, hyperparameters=other)), file, checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    with pytest.raises(JobFault, match="checkpoint"):
        prepared(job, file, checkpoint)
    file.write_text(file.read_text().replace("blue", "red"))
    with pytest.raises(JobFault) as fault:
        prepared(job, file, tmp_path / "none")
    assert (fault.value.error.code, fault.value.error.param) == ("data_changed", "training_file")


@pytest.mark.parametrize("param", ["training_file", "validation_file"])
def test_a_line_that_cannot_be_used_is_named_with_its_file(file: Path, tmp_path: Path, param: str):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(file.read_text() + '{"prompt": 1, "completion": ""}\n')
    files = (bad, None) if param == "training_file" else (file, bad)
    with pytest.raises(JobFault, match="line 6") as fault:
        work().validate(new_job(), *files, nobody)
    assert (fault.value.error.code, fault.value.error.param) == (f"invalid_{param}", param)


def test_beside_requests_reading_a_file_rests(file: Path, monkeypatch: pytest.MonkeyPatch):
    """How long is tests/finetune/test_reading_pace.py's; here that most of the work lies between rests."""
    rests: list[float] = []
    monkeypatch.setattr(lora_job_work, "ReadingPace", partial(ReadingPace, sleep=rests.append))
    file.write_text(file.read_text() * 100)
    computed_s = time.thread_time()
    data = work(is_serving=True).validate(new_job(), file, None, nobody)
    assert sum(rests) > time.thread_time() - computed_s
    rests.clear()
    assert data == work().validate(new_job(), file, None, nobody) and not rests


def test_a_validation_example_may_be_the_longest(file: Path, tmp_path: Path):
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "the tower", "completion": " is blue" * 30}) + "\n")
    job = new_job()
    job = job.validated(work().validate(job, file, long, nobody))
    training = work().prepare(job, file, long, tmp_path / "none", nobody)
    assert isinstance(training, LoraTraining)
    reports = []
    while not training.is_over:
        training.advance(training.layer_steps_left)
        reports += training.take_news().reports
    assert [report.valid_loss is not None for report in reports] == [False, False, True] * 2


def test_one_may_go_on_from_an_adapter_also_under_another_scale(file: Path, tmp_path: Path):
    folder, job = tmp_path / "model", queued(file)
    state, _ = run(prepared(job, file, tmp_path / "none"))
    folder.mkdir()
    work().export(job, state, folder)
    adapters = {"ft:mine": folder}
    later = queued(file, replace(SPEC, model="ft:mine", rank=None, alpha=4.0), adapters)
    assert later.data is not None and later.data.hyperparameters.rank == 16
    begin = prepared(later, file, tmp_path / "none", adapters).state()
    for name, matrices in state.matrices().items():
        added, wanted = begin.matrices()[name], 2.0 * matrices.b @ matrices.a
        torch.testing.assert_close(4.0 / 16 * added.b @ added.a, wanted)
    with pytest.raises(JobFault, match="no longer served"):
        prepared(later, file, tmp_path / "none")
    small = replace(later.data, hyperparameters=replace(later.data.hyperparameters, rank=2))
    with pytest.raises(JobFault, match="rank"):
        prepared(replace(later, data=small), file, tmp_path / "none", adapters)


def test_a_loss_that_is_no_number_is_the_jobs_fault(file: Path, tmp_path: Path):
    job = queued(file, replace(SPEC, learning_rate=1e12))
    with pytest.raises(TrainingDiverged) as fault:
        run(prepared(job, file, tmp_path / "none"))
    assert job_error(fault.value).code == "training_diverged"


def test_other_names_of_the_base_are_the_base(file: Path, tmp_path: Path):
    job = queued(file, replace(SPEC, model="alias"))
    assert prepared(job, file, tmp_path / "none").state().step == 0


def test_reading_stops_when_nobody_wants_it_any_more(file: Path):
    def stop() -> None:
        raise JobStopped

    with pytest.raises(JobStopped):
        work().validate(new_job(), file, None, stop)


@given(num_steps=st.integers(1, 10**6), num_parameters=st.integers(1, 10**9))
def test_few_checkpoints_are_written_of_a_long_job_and_few_bytes_of_a_large_model(num_steps: int, num_parameters: int):
    every = steps_per_checkpoint(num_steps, num_parameters)
    assert every >= 10
    assert num_steps // every <= 100
    assert num_parameters * 12 / (every + 1) <= 5_000_000


def test_examples_that_were_cut_or_left_out_are_counted(tmp_path: Path):
    long = {"prompt": "the tower is", "completion": " blue" * 200}
    hopeless = {"prompt": "the tower is" * 200, "completion": " blue"}
    file, other = tmp_path / "data.jsonl", tmp_path / "other.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*LINES, long, hopeless]))
    other.write_text(json.dumps(long))
    data = work().validate(new_job(), file, other, nobody)
    assert (data.num_examples, data.num_truncated, data.num_left_out) == (6, 2, 1)
    assert data.hyperparameters.max_length == 128
