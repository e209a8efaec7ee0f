"""The executor and the KV blocks that the compared systems share, one after another."""

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
    """`num_blocks` of the executor's blocks, from block 0 on; it may have more. Host blocks are for swapping.

    clock: tells what the executor's work takes.
    max_model_len: tokens that one sequence may have, which is what reserving the maximum reserves.
    max_num_seqs, max_num_batched_tokens: what the executor takes in one plan. vocab_size: ids are below it.
    num_spare_blocks: the executor's blocks after `num_blocks`, which no request gets.
    overlap: whether an iteration is launched while another runs. padded_size: as `IterationTime` takes it. trainings:
    the executor's, where it takes any. num_lanes: batches in flight, of other requests each: as many as the executor
    has stages. window: what sequences give back of it where layers of a model see a window. versions: of decodes, which
    no two systems may count alike: the executor knows decodes by them.
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
        """Tokens that fit, of sequences that have given nothing back."""
        return CacheRoom(self.num_blocks, self.block_size, self.window).num_tokens
