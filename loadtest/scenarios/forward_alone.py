"""Time of the forward passes of equal requests alone: FineInfer's forwarding latency, from which overhead is computed.

The executor gets their prompts, then their decodes. As with overlapping iterations, each plan is launched before the
previous one has ended. There is no scheduler, and the drawn ids are not read.
"""

import time
from collections.abc import Callable

from loadtest.baselines.kv_pool import KvPool
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence

_STEPS = 24
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def forward_seconds(pool: KvPool, num_requests: int, prompt_len: int, output_len: int) -> float:
    """Seconds of the prompts plus `output_len` - 1 decodes at the mean context. Overwrites the pool."""
    prompts, decode = _plans(pool, num_requests, prompt_len, output_len)
    prompt_s = min(_seconds(pool, prompts) for _ in range(3))
    many_s, few_s = (min(_seconds(pool, [decode] * num) for _ in range(3)) for num in (2 * _STEPS, _STEPS))
    step_s = (many_s - few_s) / _STEPS
    _release(pool, num_requests)
    return prompt_s + (output_len - 1) * step_s


def forward_trials(pool: KvPool, num_requests: int, prompt_len: int, output_len: int) -> Callable[[], None]:
    """Each call runs all of it once, launching ahead. Overwrites the pool."""
    prompts, decode = _plans(pool, num_requests, prompt_len, output_len)

    def trial() -> None:
        _seconds(pool, [*prompts, *[decode] * (output_len - 1)])
        _release(pool, num_requests)

    return trial


def _plans(
    pool: KvPool, num_requests: int, prompt_len: int, output_len: int
) -> tuple[list[IterationPlan], IterationPlan]:
    """The iterations of the prompts, and one iteration of decodes at the mean context."""
    blocks_each = -(-(prompt_len + output_len) // pool.block_size)
    assert num_requests * blocks_each <= pool.num_blocks

    def share(i: int, token_ids: tuple[int, ...], num_computed: int) -> ScheduledSequence:
        table = tuple(range(i * blocks_each, (i + 1) * blocks_each))
        return ScheduledSequence(i, i + 1, token_ids, num_computed, 0, table, _GREEDY, (Sample(i, i),))

    prompt = tuple(2 + position % 50 for position in range(prompt_len))
    together = max(1, pool.max_num_batched_tokens // prompt_len)
    prompts = [
        IterationPlan(tuple(share(i, prompt, 0) for i in range(first, min(first + together, num_requests))))
        for first in range(0, num_requests, together)
    ]
    middle = prompt_len + output_len // 2
    return prompts, IterationPlan(tuple(share(i, (3,), middle) for i in range(num_requests)))


def _release(pool: KvPool, num_requests: int) -> None:
    pool.executor.launch(IterationPlan((), released=tuple(range(1, 1 + num_requests)))).wait()


def _seconds(pool: KvPool, plans: list[IterationPlan]) -> float:
    began = time.perf_counter()
    pending = pool.executor.launch(plans[0])
    for plan in plans[1:]:
        following = pool.executor.launch(plan)
        pending.wait()
        pending = following
    pending.wait()
    return time.perf_counter() - began
