"""Fine-tuning as engine and scheduler see it (FineInfer, section 2.4): a series of layer steps.

A *layer step* is the smallest unit of training: one layer of one micro-batch, forward or backward. A *fine-tuning
iteration* is all layer steps of one micro-batch, with its loss, and the optimizer's step if one is due.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

MOST_GRAPH_TOKENS = 2048
"""Micro-batches of up to so many tokens run their layer steps as CUDA graphs. From about 1,000 tokens on, computing
takes longer than launching (loadtest/log/finetuning.md), and graphs still gain a few percent; but the temporary tensors
of graphs need memory of their own."""


class Arena(NamedTuple):
    """Contiguous KV blocks that hold a training's activations. lease: a number that grows with each loan. Activations
    of an earlier lease are lost, even if the blocks are the same."""

    lease: int
    first_block: int
    num_blocks: int

    @property
    def block_ids(self) -> range:
        return range(self.first_block, self.first_block + self.num_blocks)


class TrainingShare(NamedTuple):
    """A plan's share of a training: run `num_layer_steps` layer steps, or as many as are left; 0: see
    `Training.advance`. training_id: a training that the executor was given. arena: where its activations live; None if
    it needs no KV blocks."""

    training_id: int
    num_layer_steps: int
    arena: Arena | None = None


class StepReport(NamedTuple):
    """An optimizer step is done; the first is number 1.

    loss: mean over the step's trained tokens. token_accuracy: share of these that are the model's greedy choice.
    num_trained_tokens: of this step. gradient_norm: before clipping. valid_loss, valid_accuracy: over validation
    examples; None unless they were evaluated after this step.
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
    """What a training reports since it was last asked. reports: one per optimizer step, in order. state: a copy in host
    memory as of the last report, if a checkpoint is due (after the last step it always is)."""

    reports: tuple[StepReport, ...] = ()
    state: object | None = None


class TrainingOutcome(NamedTuple):
    """The outcome of a share.

    num_layer_steps: how many were run. seconds: how long they took, on the device if it can measure it, else on the
    host. layer_steps_left: of the training's present iteration, after them. is_over: none are left at all. fault: ends
    this training and nothing else; the other fields then describe what was done before it.
    """

    training_id: int
    num_layer_steps: int
    seconds: float
    layer_steps_left: int
    news: TrainingNews = TrainingNews()
    is_over: bool = False
    fault: Exception | None = None


class TrainingInterrupted(Exception):
    """The engine has stopped or died. Not a fault of the training, which can resume in another process from its last
    snapshot."""


class TrainingListener(Protocol):
    """The owner of a training. Called on the engine thread; must be quick and must not raise."""

    def step(self, report: StepReport) -> None: ...

    def snapshot(self, state: object) -> None:
        """A checkpoint is due. The listener now owns `state`."""
        ...

    def ended(self, fault: Exception | None) -> None:
        """The last call, made exactly once. fault: None: all steps are done, or it was stopped; TrainingInterrupted:
        the engine ended, if possible after one more snapshot; else: what ended it."""
        ...


class Training(Protocol):
    """A training, as its executor runs it. Engine thread only, except for constant properties.

    training_id: unique in the process. layer_steps_per_iteration: layer steps of a fine-tuning iteration, constant.
    num_arena_bytes: size of one micro-batch's activations.
    """

    @property
    def training_id(self) -> int: ...

    @property
    def layer_steps_per_iteration(self) -> int: ...

    @property
    def layer_steps_left(self) -> int:
        """Layer steps left in the current fine-tuning iteration; between two, those of the next one. 0: it is over."""
        ...

    @property
    def num_arena_bytes(self) -> int: ...

    @property
    def is_over(self) -> bool:
        """No layer steps are left, and `take_news` has reported everything."""
        ...

    def use_memory(self, memory: Any) -> None:
        """Keep activations in this flat uint8 tensor from now on; None: in memory of its own, as at first. The current
        micro-batch is dropped and computed again."""
        ...

    def advance(self, num_layer_steps: int) -> int:
        """Run up to so many layer steps and return how many (on a GPU they are only launched); fewer if no more are
        left. Raises what ends this training (a loss that is not finite, out of memory, ...).

        With 0 nothing is computed. If several executors have parts of the training, all must make this call, and the
        first one collects from the others what `state` needs."""
        ...

    def take_waited_s(self) -> float:
        """Seconds, of what `advance` launched since the last call, in which the device waited for other executors'
        parts. Call only once that work is computed."""
        ...

    def take_news(self) -> TrainingNews:
        """News since the last call. Call only once what `advance` launched is computed. Raises as `advance` does."""
        ...

    def state(self) -> object:
        """A copy in host memory as of the last optimizer step. Work since then is not in it; whoever resumes from it
        repeats that work bit for bit. If several executors have parts: call `advance(0)` first."""
        ...
