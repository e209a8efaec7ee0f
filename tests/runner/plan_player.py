"""Plays scheduler for a ModelRunner: hand-made plans, blocks from a shuffled free list, no engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from service.core.iteration import NO_DECODES, IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.runner.model_runner import ModelRunner
from tests.runner.plans import as_decodes

_versions = count(1)
"""Of decodes: no two players' are the same."""


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


@dataclass
class Playing:
    """One sequence while it runs."""

    sequence_id: int
    row: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    adapter_slot: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    known_blocks: int = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]


class PlanPlayer:
    """`chunk` prompt tokens an iteration at most; `max_seqs` sequences at a time, later ones join as others end. Who
    decodes, and did so before, stands among the plan's decodes."""

    def __init__(self, runner: ModelRunner, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self._runner = runner
        self._block_size = block_size
        self._free = list(range(num_blocks))
        self._version = next(_versions)
        self._decoding: list[int] = []
        random.Random(seed).shuffle(self._free)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        chunk: int = 10**9,
        max_seqs: int = 10**9,
        adapter_slots: Sequence[int] = (),
    ) -> list[list[int]]:
        slots = adapter_slots or [0] * len(prompts)
        params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        each = zip(prompts, params, slots, strict=True)
        waiting = [Playing(i, 0, list(p), len(p), s, slot) for i, (p, s, slot) in enumerate(each)]
        every, running, ended = list(waiting), list[Playing](), list[int]()
        free_rows = [*range(1, 1 + min(len(prompts), 2 * max_seqs))]
        while waiting or running:
            while waiting and len(running) < max_seqs:
                waiting[0].row = free_rows.pop()
                running.append(waiting.pop(0))
            self._step(running, tuple(ended), chunk)
            free_rows += ended
            ended = [p.row for p in running if self._is_done(p)]
            for playing in running:
                if self._is_done(playing):
                    self._free.extend(playing.blocks)
            running = [p for p in running if not self._is_done(p)]
        self._runner.launch(IterationPlan((), released=tuple(ended))).wait()
        return [playing.output for playing in every]

    def _step(self, running: list[Playing], released: tuple[int, ...], chunk: int) -> None:
        running.sort(key=lambda playing: not _is_steady(playing))  # those stand first in the result
        steady = [playing for playing in running if _is_steady(playing)]
        if [playing.sequence_id for playing in steady] != self._decoding:
            self._version, self._decoding = next(_versions), [playing.sequence_id for playing in steady]
        scheduled = [self._schedule(playing, chunk) for playing in running]
        decodes = as_decodes(scheduled[: len(steady)], self._version) if steady else NO_DECODES
        plan = IterationPlan(tuple(scheduled[len(steady) :]), released=released, decodes=decodes)
        result = iter(self._runner.launch(plan).wait().token_ids)
        for playing, item in zip(running, scheduled, strict=True):
            playing.computed += len(item.token_ids)
            playing.tokens.extend(next(result) for _ in item.samples)
        assert next(result, None) is None

    def _schedule(self, playing: Playing, chunk: int) -> ScheduledSequence:
        token_ids = tuple(playing.tokens[playing.computed : playing.computed + chunk])
        end = playing.computed + len(token_ids)
        while len(playing.blocks) * self._block_size < end:
            playing.blocks.append(self._free.pop())
        start, playing.known_blocks = playing.known_blocks, len(playing.blocks)
        is_last = end == len(playing.tokens)
        return ScheduledSequence(
            sequence_id=playing.sequence_id,
            row=playing.row,
            token_ids=token_ids,
            num_computed_tokens=playing.computed,
            table_start=start,
            block_ids=tuple(playing.blocks[start:]),
            sampling=playing.sampling,
            samples=(Sample(playing.sequence_id, playing.sampling.seed),) if is_last else (),
            adapter_slot=playing.adapter_slot,
        )

    @staticmethod
    def _is_done(playing: Playing) -> bool:
        return len(playing.output) >= playing.sampling.max_tokens


def _is_steady(playing: Playing) -> bool:
    """Whether it decodes, and its last draw was in the iteration before."""
    return len(playing.output) > 1
