"""FineInfer's SimpleReqManager (end-to-end report, section 3.3.3): continuous batching over one padded, contiguous
tensor of keys and values.

Modelled, on our engine and kernels:
- Admission. The running batch is a rectangle: as many rows as sequences, each as long as the longest row can become
  if it runs to the output limit. A request joins if the rectangle with it stays within the KV memory. The real
  lengths of answers are not known to it.
- Prefill: prompts that start in one iteration are padded to the longest of them, and the padding goes through the
  model, in iterations of its own (`PaddedPrefill`).
Not modelled, in its favour: attention reads no padding in decode iterations; the concatenation of tensors when
requests join or leave costs nothing; prompts that start join the decodes of the same iteration instead of having one
of their own.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, KnownLimit
from loadtest.baselines.kv_pool import KvPool
from service.core.iteration_plan import IterationPlan, ScheduledSequence
from service.core.sequence_group import SequenceGroup
from service.engine.ports import PendingIteration
from service.kvcache.block_manager import BlockManager, Fit

_PADDING_SEQUENCE_ID = -1000


class PaddedContiguousAdmission:
    """Rows x the longest row, against the whole memory."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def fit(
        self, group: SequenceGroup, prefix: list[int], blocks: BlockManager, running: Sequence[SequenceGroup]
    ) -> Fit:
        """See `service/scheduler/admission.py`."""
        return Fit.OK if rectangle_tokens([*running, group]) <= self._num_tokens else Fit.LATER


def rectangle_tokens(groups: Sequence[SequenceGroup]) -> int:
    """KV tokens that the batch of these requests sets aside."""
    num_rows = sum(group.request.sampling.n for group in groups)
    return num_rows * max((group.request.max_num_tokens for group in groups), default=0)


class PaddedPrefill:
    """An executor that computes, beside each prompt that starts in an iteration, the padding up to the longest one.

    The padding is computed by sequences of its own, which draw nothing, in the pool's spare blocks; what exceeds the
    executor's tokens a plan goes through it in plans of its own.
    """

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._to_release: tuple[int, ...] = ()

    def launch(self, plan: IterationPlan) -> PendingIteration:
        """As the executor inside, only slower."""
        for extra in self._plans(self._padding(plan)):
            self._launch(extra).wait()
        return self._launch(plan)

    def _launch(self, plan: IterationPlan) -> PendingIteration:
        released, self._to_release = self._to_release, ()
        pending = self._pool.executor.launch(dataclasses.replace(plan, released=released + plan.released))
        self._to_release = tuple(i.sequence_id for i in plan.scheduled if i.sequence_id <= _PADDING_SEQUENCE_ID)
        return pending

    def _padding(self, plan: IterationPlan) -> list[ScheduledSequence]:
        starting = [item for item in plan.scheduled if len(item.token_ids) > 1]
        longest = max((len(item.token_ids) for item in starting), default=0)
        return [
            self._filler(number, longest - len(item.token_ids), item)
            for number, item in enumerate(starting)
            if len(item.token_ids) < longest
        ]

    def _plans(self, padding: list[ScheduledSequence]) -> Iterator[IterationPlan]:
        while padding:
            num_tokens = list(itertools.accumulate(len(item.token_ids) for item in padding))
            count = max(1, bisect.bisect_right(num_tokens, self._pool.max_num_batched_tokens))
            yield IterationPlan(tuple(padding[:count]))
            padding = padding[count:]

    def _filler(self, number: int, num_tokens: int, beside: ScheduledSequence) -> ScheduledSequence:
        first, num_blocks = self._pool.num_blocks, -(-num_tokens // self._pool.block_size)
        assert num_blocks <= self._pool.num_spare_blocks
        block_ids = tuple(range(first, first + num_blocks))
        sequence_id = _PADDING_SEQUENCE_ID - number
        return ScheduledSequence(sequence_id, (0,) * num_tokens, 0, 0, block_ids, beside.sampling, ())


def simple_req_manager(pool: KvPool, known_limit: KnownLimit) -> EngineSystem:
    """The system; the pool needs spare blocks for the longest prompt's padding."""
    policies = EnginePolicies(PaddedContiguousAdmission(pool.num_tokens), known_limit, held_tokens=rectangle_tokens)
    padded = dataclasses.replace(pool, executor=PaddedPrefill(pool))
    return EngineSystem("SimpleReqManager", padded, policies)
