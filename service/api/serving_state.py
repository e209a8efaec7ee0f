"""Whether the process may serve, and with what.

The app listens while the model loads. What `main.py` does, all on the event-loop thread:

- it makes `state = ServingState()` (phase `loading`), gives it to `create_app` and starts listening;
- it loads the model in another thread, starts the engine, then calls `state.set_ready(ServedModel(...))`;
- when loading fails, it calls `state.set_failed()`;
- at SIGTERM it calls `state.announce_end()` if balancers are given time to hear of it, and requests are still taken;
- then it calls `state.set_draining()`: new requests are refused, running ones go on. Those that still run when
  time is up fail in the engine, and their streams end with an error event and [DONE]. Lines of batches are not
  waited for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from service.core.adapter import Adapters
from service.core.clock import Clock, MonotonicClock
from service.core.embedding import EmbedderConfig
from service.core.grammar import Grammars
from service.engine.ailment import Ailment
from service.engine.async_engine import AsyncEngine
from service.errors import InvalidRequest, Unavailable
from service.finetune.fine_tuning import FineTuning
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values for requests that give none, from the model's generation_config.json.

    heeds_priority: whether the scheduling policy uses priorities; if not, asking for one is refused.
    lower_priority_first: a request's `priority` is vLLM's, where the lower one goes first; else the higher one does.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    heeds_priority: bool = False
    lower_priority_first: bool = False


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that is being served. Its facts never change while it is served.

    chat_template: None if the model has none; then chat is refused.
    root: the model as the server was started with it, shown to clients: a name or hub id, never a path of this machine.
    created: Unix seconds, shown in the model card.
    max_model_len: tokens that one sequence may have, prompt and output; no more than the whole KV cache holds.
    vocab_size: ids of prompts are below it. eos_token_ids: end a sequence unless the client sets `ignore_eos`.
    quantization: the format of the weights; None: not quantized.
    takes_deterministic: whether requests may ask to be deterministic: the model can be computed so in batches, or the
        server was started to do it one token at a time.
    build: what the answers depend on besides the request (weights' revision, dtype, device, kernels), for people and
        for `system_fingerprint`. Shown to clients: no paths.
    tokenizer_options: the fields of tokenizer_config.json; may contain paths of this machine.
    grammars: compile constraints on outputs; None if this server cannot, then asking for it is refused.
    adapters: None if none are served. fine_tuning: None if this server takes no jobs. clock: the engine's.
    embedder: how the model embeds; None: it generates.
    system_fingerprint: changes when answers to the same request with the same seed may change.
    """

    engine: AsyncEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    root: str
    created: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    defaults: GenerationDefaults = GenerationDefaults()
    build: Mapping[str, str] = field(default_factory=dict)
    quantization: str | None = None
    takes_deterministic: bool = False
    tokenizer_options: Mapping[str, object] = field(default_factory=dict)
    grammars: Grammars | None = None
    adapters: Adapters | None = None
    fine_tuning: FineTuning | None = None
    embedder: EmbedderConfig | None = None
    clock: Clock = field(default_factory=MonotonicClock)
    system_fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        facts = "\n".join(f"{name}={value}" for name, value in sorted(self.build.items()))
        object.__setattr__(self, "system_fingerprint", f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:12]}")


class ServingState:
    """The phase, and once loaded the model. Read and changed on the event-loop thread only."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self._end_is_near = False
        self._model: ServedModel | None = None

    @property
    def model(self) -> ServedModel | None:
        """The model once it is loaded, also while draining; None before."""
        return self._model

    def set_ready(self, model: ServedModel) -> None:
        assert self.phase is Phase.LOADING
        self._model = model
        self.phase = Phase.READY

    def announce_end(self) -> None:
        """Load balancers should send no more requests here; those that come are still taken."""
        self._end_is_near = True

    @property
    def wants_requests(self) -> bool:
        """Whether a load balancer should send requests here."""
        return self.phase is Phase.READY and not self._end_is_near

    def set_draining(self) -> None:
        """From any phase; it cannot be undone."""
        self.phase = Phase.DRAINING

    def set_failed(self) -> None:
        """Loading failed or the engine is lost; it cannot be undone."""
        self.phase = Phase.FAILED

    def ailment(self) -> Ailment | None:
        """Why a new short request would not complete; None if it would."""
        if self.phase is Phase.READY and self._model is not None:
            return self._model.engine.ailment()
        return Ailment(self.phase, self._unavailable().message)

    def check_ready(self) -> ServedModel:
        """The model; raises Unavailable when new requests are not taken."""
        if self.phase is Phase.READY and self._model is not None:
            return self._model
        raise self._unavailable()

    def check_generates(self) -> ServedModel:
        """As `check_ready`; raises InvalidRequest if this is an embedding model."""
        model = self.check_ready()
        if model.embedder is not None:
            raise InvalidRequest("This is an embedding model and generates no text; use /v1/embeddings.")
        return model

    def check_embeds(self) -> tuple[ServedModel, EmbedderConfig]:
        """As `check_ready`; raises InvalidRequest if this is not an embedding model."""
        model = self.check_ready()
        if model.embedder is None:
            raise InvalidRequest(
                "This model does not support embeddings: it has no pooling configuration (1_Pooling/config.json)."
            )
        return model, model.embedder

    def check_loaded(self) -> ServedModel:
        """The model, also while draining. Raises Unavailable with the reason while there is none."""
        if self._model is None:
            raise self._unavailable()
        return self._model

    def _unavailable(self) -> Unavailable:
        if self.phase is Phase.LOADING:
            return Unavailable("The model is still loading.", retry_after_s=2.0, code="model_loading")
        if self.phase is Phase.DRAINING:
            return Unavailable("The server is shutting down.", retry_after_s=5.0, code="shutting_down")
        return Unavailable("The model could not be loaded or the engine has stopped.", retry_after_s=30.0)
