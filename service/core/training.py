"""Fine-tuning as engine and scheduler know it (FineInfer, section 2.4): a series of layer steps.

A *layer step* is the shortest piece that training can be cut into: one layer of a micro-batch, forward or backward. The
layer steps of one micro-batch, with its loss, and the optimizer's step where one is due, are a *fine-tuning iteration*.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

MOST_GRAPH_TOKENS = 2048
"""Of a micro-batch whose layer steps are CUDA graphs. From 1,000 or so on a device computes for longer than the host
launches (loadtest/log/finetuning.md), and without a host between its kernels is still a few percent faster; but
temporary tensors of graphs have memory of their own."""


class Arena(NamedTuple):
    """KV blocks, neighbours, that hold a training's activations. lease: grows with each loan; what was computed under
    another one is lost, also where the blocks are the same."""

    lease: int
    first_block: int
    num_blocks: int

    @property
    def block_ids(self) -> range:
        return range(self.first_block, self.first_block + self.num_blocks)


class TrainingShare(NamedTuple):
    """Layer steps that a plan has. training_id: of a training that the executor was given. num_layer_steps: fewer are
    run if no more are left; 0: see `Training.advance`. arena: where; None for a training that needs no memory."""

    training_id: int
    num_layer_steps: int
    arena: Arena | None = None


class StepReport(NamedTuple):
    """An optimizer step is done; the first is 1.

    loss: mean over the step's trained tokens. token_accuracy: share of these that the model would have drawn greedily.
    num_trained_tokens: of this step. gradient_norm: before any clipping. valid_loss, valid_accuracy: over validation
    examples, where some were looked at after this step.
    """

    step: int
    loss: float
    token_accuracy: float
    num_trained_tokens: int
    learning_rate: float
    gradient_norm: float
    valid_loss: float | None = None
    valid_accuracy: float | None = None


class TrainingNews(NamedTuple):
    """What a training has to tell since it was asked before. reports: one for each optimizer step, in their order.
    state: a copy in host memory as of the last of them, where a checkpoint is due; after the last step always."""

    reports: tuple[StepReport, ...] = ()
    state: object | None = None


class TrainingOutcome(NamedTuple):
    """What came of a share.

    num_layer_steps: that were done. seconds: of them all, on the device, else on the host. layer_steps_left: the
    training's, behind them. is_over: no more are left at all. fault: ends this training and nothing else; the rest is
    then what was done before it.
    """

    training_id: int
    num_layer_steps: int
    seconds: float
    layer_steps_left: int
    news: TrainingNews = TrainingNews()
    is_over: bool = False
    fault: Exception | None = None


class TrainingInterrupted(Exception):
    """The engine has stopped or died. It is no fault of the training, which can go on in another process from its last
    snapshot."""


class TrainingListener(Protocol):
    """Whose training it is. Called on the engine thread; quick; never raises."""

    def step(self, report: StepReport) -> None: ...

    def snapshot(self, state: object) -> None:
        """A checkpoint is due, with this state, which is the listener's to keep."""
        ...

    def ended(self, fault: Exception | None) -> None:
        """The last call, and exactly one. None: all steps are done, or it was stopped. TrainingInterrupted: see there;
        one more snapshot came before it if that was possible."""
        ...


class Training(Protocol):
    """A training as its executor carries it on. Engine thread only, but for what never changes.

    training_id: of no other in the process. layer_steps_per_iteration: of a fine-tuning iteration, the same for each.
    num_arena_bytes: what the activations of one micro-batch take.
    """

    @property
    def training_id(self) -> int: ...

    @property
    def layer_steps_per_iteration(self) -> int: ...

    @property
    def layer_steps_left(self) -> int:
        """Of the fine-tuning iteration under way; at its edge, of the next one. 0 once it is over."""
        ...

    @property
    def num_arena_bytes(self) -> int: ...

    @property
    def is_over(self) -> bool:
        """No layer steps are left, and `take_news` has told all."""
        ...

    def use_memory(self, memory: Any) -> None:
        """Activations live in this flat uint8 tensor from now on; None: in memory of the training's own, as at first.
        The micro-batch under way is dropped and done again."""
        ...

    def advance(self, num_layer_steps: int) -> int:
        """Run up to so many layer steps and return how many; on a GPU they are launched. Fewer only where none are
        left. Raises what ends this training (a loss that is not finite, no memory ...).

        0: nothing is computed, but where several executors have parts of the training, which all do this alike, the
        first one gets what `state` takes of the others."""
        ...

    def take_waited_s(self) -> float:
        """Seconds of what `advance` launched, since this was asked before, in which the device waited for other
        executors' parts. Asked once that is computed."""
        ...

    def take_news(self) -> TrainingNews:
        """Asked once what `advance` launched is computed. Raises as `advance` does."""
        ...

    def state(self) -> object:
        """A copy in host memory as of the last optimizer step; what was computed since then is not in it, and whoever
        goes on from it does that again, to the same bits. Where several have parts, after `advance` of 0."""
        ...
