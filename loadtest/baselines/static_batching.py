"""Request-level scheduling, ORCA's baseline (section 3.1 and figure 3; "ft" in its figures 9 to 11).

A batch is formed from the queue when the previous one has ended. No request joins or leaves a batch: answers are
returned when the longest is complete (ORCA's early-finished and late-joining requests).

Modelled, on our engine and kernels: the batch is padded like FasterTransformer's, prompts to the longest prompt and
answers to the longest answer, and the padding is computed. Memory: each row reserves the batch's longest prompt plus
`known_limit` tokens. Everything is modelled, except that prompts go through the engine in chunks of the token budget,
while FasterTransformer processes the batch whole.

With a microbatch size, the batch goes through a pipeline in parts (figure 8b; "ft(max_bs, mbs)"): as few as possible of
at most that size, all equally large, since that leaves a smaller bubble than full ones and a remainder. Each part waits
only for its own tokens; the next batch waits for all parts.
"""

import dataclasses
from collections import deque

from loadtest.baselines.engine_system import EngineSystem, KnownLimit, paged
from loadtest.baselines.kv_pool import KvPool
from loadtest.offline.serving_system import Completion, IterationFacts, OfflineRequest

_FILLER_TOKEN_ID = 2


class StaticBatching:
    """A `ServingSystem`. microbatch_size: None: batches are not divided."""

    def __init__(
        self, pool: KvPool, known_limit: KnownLimit, max_batch_size: int, microbatch_size: int | None = None
    ) -> None:
        whole = microbatch_size is None
        self.name = f"static batching ({max_batch_size})" if whole else f"ft({max_batch_size}, {microbatch_size})"
        self.clock = pool.clock
        self._pool = pool
        self._known_limit = known_limit
        self._max_batch_size = max_batch_size
        self._microbatch_size = microbatch_size or max_batch_size
        self._engines: dict[int, EngineSystem] = {}
        self._engine = self._engine_of(1)
        self._queue: deque[OfflineRequest] = deque()
        self._batch: dict[int, OfflineRequest] = {}
        self._held_back: list[Completion] = []
        self._completions: list[Completion] = []

    @property
    def has_work(self) -> bool:
        """See `ServingSystem`."""
        return bool(self._queue) or self._engine.has_work

    def submit(self, request: OfflineRequest) -> None:
        """See `ServingSystem`. Raises ValueError for a request that fits no batch."""
        if not self._fits([request]):
            raise ValueError(f"{self.name}: request {request.request_id} never fits")
        self._queue.append(request)

    def step(self) -> None:
        """See `ServingSystem`."""
        if not self._engine.has_work:
            self._form_batch()
        self._engine.step()
        self._held_back += self._engine.take_completions()
        if not self._engine.has_work:
            self._give_back()

    def take_completions(self) -> list[Completion]:
        """See `ServingSystem`."""
        taken, self._completions = self._completions, []
        return taken

    def facts(self) -> IterationFacts:
        """See `ServingSystem`."""
        return dataclasses.replace(self._engine.facts(), num_waiting=len(self._queue), memory=None)

    def close(self) -> None:
        """See `ServingSystem`."""
        for engine in self._engines.values():
            engine.close()

    def _form_batch(self) -> None:
        batch: list[OfflineRequest] = []
        while self._queue and len(batch) < self._max_batch_size and self._fits([*batch, self._queue[0]]):
            batch.append(self._queue.popleft())
        self._engine = self._engine_of(-(-sum(request.n for request in batch) // self._microbatch_size))
        self._batch = {request.request_id: request for request in batch}
        longest_prompt = max(len(request.prompt_token_ids) for request in batch)
        longest_output = max(request.output_len for request in batch)
        for request in batch:
            filler = (_FILLER_TOKEN_ID,) * (longest_prompt - len(request.prompt_token_ids))
            self._engine.submit(
                dataclasses.replace(
                    request, prompt_token_ids=filler + request.prompt_token_ids, output_len=longest_output
                )
            )

    def _engine_of(self, num_microbatches: int) -> EngineSystem:
        """The engine for this number of microbatches. Only one engine computes at a time."""
        if num_microbatches not in self._engines:
            self._engines[num_microbatches] = paged(dataclasses.replace(self._pool, num_lanes=num_microbatches))
        return self._engines[num_microbatches]

    def _give_back(self) -> None:
        now_s = self.clock.now_s()
        for completion in self._held_back:
            request = self._batch[completion.request_id]
            own_tokens = request.output_len * request.n
            self._completions.append(dataclasses.replace(completion, finished_s=now_s, num_output_tokens=own_tokens))
        self._held_back = []

    def _fits(self, batch: list[OfflineRequest]) -> bool:
        """Whether every row has room to grow to the longest prompt plus the limit that the system knows."""
        longest = max(len(request.prompt_token_ids) for request in batch)
        limit = max(max(self._known_limit(request.output_len), request.output_len) for request in batch)
        num_rows = sum(request.n for request in batch)
        return num_rows * -(-(longest + limit) // self._pool.block_size) <= self._pool.num_blocks
