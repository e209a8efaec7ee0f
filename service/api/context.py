"""What every endpoint is given."""

from __future__ import annotations

from dataclasses import dataclass

from service.api.call_trace import TraceStore
from service.api.random_ids import RandomIds
from service.api.response_store import ResponseStore
from service.api.serving_state import ServingState
from service.api.text_pool import TextPool
from service.config import ApiConfig
from service.core.rare_warning import RareWarning
from service.metrics.recorder import Recorder
from service.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class ApiContext:
    """texts: runs work that could hold up the event loop. ids: for calls. unread: logs streams that were cut because
    their client did not read them."""

    state: ServingState
    config: ApiConfig
    texts: TextPool
    recorder: Recorder
    traces: TraceStore
    ids: RandomIds
    unread: RareWarning
    responses: ResponseStore
    storage: Storage
