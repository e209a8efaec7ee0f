"""The commands that the event loop sends to the engine's thread, and what each of them does."""

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
    """The request's time in the queue is over: it ends with `error`, unless it has started."""

    request_id: str
    error: RequestError


@dataclass(frozen=True, slots=True)
class StopChoice:
    request_id: str
    choice_index: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for request statistics so far. `tell` is called on the engine thread with the statistics, by id, of those
    requests that have not ended. It must not raise or block."""

    request_ids: Sequence[str]
    tell: Callable[[dict[str, RequestStats]], None]


@dataclass(frozen=True, slots=True)
class ForgetAdapter:
    adapter: Adapter


@dataclass(frozen=True, slots=True)
class ForgetPrefixes:
    """Clear the prefix cache: requests submitted later find nothing that was cached before."""


@dataclass(frozen=True, slots=True)
class StartTraining:
    training: Training
    listener: TrainingListener


@dataclass(frozen=True, slots=True)
class StopTraining:
    """wants_state: give the listener a snapshot first."""

    training_id: int
    wants_state: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Shut down: end every live request with `error`, end the training with a snapshot, then end the thread."""

    error: RequestError


Command = (
    Submit | Abort | Expire | StopChoice | Ask | ForgetAdapter | ForgetPrefixes | StartTraining | StopTraining | Stop
)


def carry_out(command: Command, engine: Engine) -> None:
    """Carry out any command but `Stop`, which EngineLoop handles itself. Engine thread, between two iterations."""
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
