"""What the event loop asks of the engine's thread: values that go through its inbox, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.core.adapter import Adapter
from service.core.request import Request
from service.core.stats import RequestStats
from service.core.training import Training, TrainingListener
from service.engine.engine import Engine
from service.errors import RequestError


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Its time in the queue is over: it ends with `error` unless it has started."""

    request_id: str
    error: RequestError


@dataclass(frozen=True, slots=True)
class StopChoice:
    request_id: str
    choice_index: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What is known of requests so far: `tell` is called on the engine thread with the statistics of those among them
    that have not ended, by their ids; it neither raises nor waits."""

    request_ids: Sequence[str]
    tell: Callable[[dict[str, RequestStats]], None]


@dataclass(frozen=True, slots=True)
class ForgetAdapter:
    adapter: Adapter


@dataclass(frozen=True, slots=True)
class ForgetPrefixes:
    """Requests that are sent after it find nothing of what came before it."""


@dataclass(frozen=True, slots=True)
class StartTraining:
    training: Training
    listener: TrainingListener


@dataclass(frozen=True, slots=True)
class StopTraining:
    """wants_state: with a snapshot."""

    training_id: int
    wants_state: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """End every live request with `error`, the training with a snapshot, then the thread."""

    error: RequestError


Command = (
    Submit | Abort | Expire | StopChoice | Ask | ForgetAdapter | ForgetPrefixes | StartTraining | StopTraining | Stop
)


def carry_out(command: Command, engine: Engine) -> None:
    """On the engine's thread, between two iterations. `Stop` is its own matter."""
    match command:
        case Submit(request):
            engine.requests.add(request)
        case Abort(request_id):
            engine.requests.abort(request_id)
        case Expire(request_id, error):
            engine.requests.fail_unless_started(request_id, error)
        case StopChoice(request_id, choice_index):
            engine.requests.stop_choice(request_id, choice_index)
        case Ask(request_ids, tell):
            tell(engine.requests.stats_so_far(request_ids))
        case ForgetAdapter(adapter):
            engine.scheduler.blocks.adapter_slots.forget(adapter)
        case ForgetPrefixes():
            engine.scheduler.blocks.forget_prefixes()
        case StartTraining(training, listener):
            engine.training.start(training, listener)
        case StopTraining(training_id, wants_state):
            engine.stop_training(training_id, wants_state=wants_state)
