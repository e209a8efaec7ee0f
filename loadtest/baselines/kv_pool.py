"""The executor and KV blocks that compared systems use one after another."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from loadtest.offline.work_clock import WorkClock
from service.engine.ports import Executor, TrainingExecutor
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.cache_room import CacheRoom
from service.prediction.iteration_time import PaddedSize


@dataclass(frozen=True, slots=True)
class KvPool:
    """`num_blocks` of the executor's blocks, starting at block 0; it may have more. Host blocks are for swapping.

    clock: measures the executor's work.
    max_model_len: most tokens of a sequence; this is what reserving the maximum reserves.
    max_num_seqs, max_num_batched_tokens: limits of a plan. vocab_size: ids are below it.
    num_spare_blocks: further blocks of the executor, which no request gets.
    overlap: whether an iteration is launched while another runs. padded_size: as `IterationTime` takes it. trainings:
    the executor's, if it has any. num_lanes: batches in flight, with different requests each; one per stage of the
    executor. window: the model's sliding window, by which sequences free blocks. versions: numbers for decode batches,
    never the same for two systems, since the executor recognizes decode batches by them.
    """

    executor: Executor
    clock: WorkClock
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    num_host_blocks: int = 0
    num_spare_blocks: int = 0
    overlap: bool = False
    padded_size: PaddedSize | None = None
    trainings: TrainingExecutor | None = None
    num_lanes: int = 1
    window: AttentionWindow | None = None
    versions: Iterator[int] = field(default_factory=lambda: count(1), compare=False)

    @property
    def num_tokens(self) -> int:
        """Capacity in tokens, without what sliding windows free."""
        return CacheRoom(self.num_blocks, self.block_size, self.window).num_tokens
