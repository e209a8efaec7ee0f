from __future__ import annotations

from service.finetune.job import Job, JobSpec
from service.finetune.model_name import checkpoint_name, model_name

JOB = Job("ftjob-0123456789abcdef01234567", "team", 1, "weights", JobSpec("any", "file-1", suffix="facts"))


def test_a_model_is_named_as_openai_names_it():
    assert model_name("base", JOB) == "ft:base:headrace:facts:0123456789ab"
    assert checkpoint_name("base", JOB, 88) == "ft:base:headrace:facts:0123456789ab:ckpt-step-88"


def test_without_a_suffix_its_place_is_empty():
    job = Job("ftjob-0123456789abcdef01234567", "team", 1, "weights", JobSpec("any", "file-1"))
    assert model_name("some-org/base", job) == "ft:some-org/base:headrace::0123456789ab"
