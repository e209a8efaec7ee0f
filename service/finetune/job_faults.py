"""Turns whatever ends a job into its `error`: a code for programs, a message for people, the field at fault."""

from __future__ import annotations

import errno
import logging

from service.errors import NotFound, RequestError, StorageFull
from service.finetune.job import JobError

_logger = logging.getLogger(__name__)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAX_MESSAGE_CHARS = 500


class JobFault(Exception):
    """A fault whose message goes to the client unchanged. Must not contain paths or addresses."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = JobError(code, message[:_MAX_MESSAGE_CHARS], param)


def job_error(fault: BaseException) -> JobError:
    """Unexpected faults are logged; the client is only told that it was the server's error."""
    match fault:
        case JobFault():
            return fault.error
        case StorageFull():
            return JobError("storage_full", fault.message)
        case OSError() if fault.errno in _FULL:
            return JobError("storage_full", "The server's disk is full.")
        case NotFound():
            return JobError("file_not_found", fault.message, "training_file")
        case RequestError():
            return JobError(fault.code or "server_error", fault.message, fault.param)
    if isinstance(fault, MemoryError) or type(fault).__name__ == "OutOfMemoryError":  # torch's; not imported here
        return JobError("out_of_memory", "There was not enough memory for a step; a smaller max_length takes less.")
    _logger.error("a fine-tuning job has failed", exc_info=fault)
    return JobError("server_error", "The server had an error while it carried out the job.")
