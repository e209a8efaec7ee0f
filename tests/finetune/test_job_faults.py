from __future__ import annotations

import errno
import logging

import pytest
import torch

from service.errors import NotFound, StorageFull, StorageUnavailable, TrainingDiverged
from service.finetune.job_faults import JobFault, job_error


@pytest.mark.parametrize(
    ("fault", "code", "param"),
    [
        (
            JobFault("invalid_training_file", "line 3: is no JSON", "training_file"),
            "invalid_training_file",
            "training_file",
        ),
        (StorageFull("no room"), "storage_full", None),
        (OSError(errno.ENOSPC, "/secret/path"), "storage_full", None),
        (StorageUnavailable("busy"), "storage_unavailable", None),
        (NotFound("No such File object"), "file_not_found", "training_file"),
        (TrainingDiverged("In step 3 the loss is nan"), "training_diverged", None),
        (MemoryError(), "out_of_memory", None),
        (torch.OutOfMemoryError("CUDA out of memory at 0x7f"), "out_of_memory", None),
    ],
)
def test_what_can_be_foreseen_has_a_code(fault: Exception, code: str, param: str | None):
    error = job_error(fault)
    assert (error.code, error.param) == (code, param)
    assert "secret" not in error.message and "0x7f" not in error.message


def test_what_nobody_foresaw_is_in_the_log_alone(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR):
        error = job_error(OSError(errno.EIO, "/secret/path"))
    assert (error.code, "secret" in error.message) == ("server_error", False)
    assert "/secret/path" in caplog.text


def test_a_message_is_cut_short():
    assert len(JobFault("code", "x" * 10**6).error.message) == 500
