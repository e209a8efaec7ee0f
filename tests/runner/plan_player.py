"""Plays scheduler for a ModelRunner: hand-made plans, blocks from a shuffled free list, no engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence, SharesGoingOn
from service.core.sampling_params import SamplingParams
from service.runner.model_runner import ModelRunner


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


@dataclass
class Playing:
    """One sequence while it runs."""

    sequence_id: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    known_blocks: int = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]


class PlanPlayer:
    """`chunk` prompt tokens an iteration at most; `max_seqs` sequences at a time, later ones join as others end."""

    def __init__(self, runner: ModelRunner, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self._runner = runner
        self._block_size = block_size
        self._free = list(range(num_blocks))
        self._before: list[ScheduledSequence] = []
        random.Random(seed).shuffle(self._free)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        chunk: int = 10**9,
        max_seqs: int = 10**9,
    ) -> list[list[int]]:
        params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        waiting = [Playing(i, list(p), len(p), s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
        every, running, ended = list(waiting), list[Playing](), list[int]()
        while waiting or running:
            while waiting and len(running) < max_seqs:
                running.append(waiting.pop(0))
            self._step(running, tuple(ended), chunk)
            ended = [p.sequence_id for p in running if self._is_done(p)]
            for playing in running:
                if self._is_done(playing):
                    self._free.extend(playing.blocks)
            running = [p for p in running if not self._is_done(p)]
        self._runner.launch(IterationPlan((), released=tuple(ended))).wait()
        return [playing.output for playing in every]

    def _step(self, running: Sequence[Playing], released: tuple[int, ...], chunk: int) -> None:
        scheduled = [self._schedule(playing, chunk) for playing in running]
        shares = going_on(self._before, scheduled) if _goes_on(self._before, scheduled) else tuple(scheduled)
        self._before = scheduled
        result = iter(self._runner.launch(IterationPlan(shares, released=released)).wait().token_ids)
        for playing, share in zip(running, scheduled, strict=True):
            playing.computed += len(share.token_ids)
            playing.tokens.extend(next(result) for _ in share.samples)
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
            token_ids=token_ids,
            num_computed_tokens=playing.computed,
            table_start=start,
            block_ids=tuple(playing.blocks[start:]),
            sampling=playing.sampling,
            samples=(Sample(playing.sequence_id, playing.sampling.seed),) if is_last else (),
        )

    @staticmethod
    def _is_done(playing: Playing) -> bool:
        return len(playing.output) >= playing.sampling.max_tokens


def going_on(before: Sequence[ScheduledSequence], now: Sequence[ScheduledSequence]) -> SharesGoingOn:
    """The shares of `now`, made out of those of the plan before."""
    grown = {place: (share.table_start, share.block_ids) for place, share in enumerate(now) if share.block_ids}
    return SharesGoingOn(before, now[0].num_computed_tokens - before[0].num_computed_tokens, grown)


def _goes_on(before: Sequence[ScheduledSequence], now: Sequence[ScheduledSequence]) -> bool:
    """Whether the shares are those of the plan before, one token further."""
    return len(before) == len(now) and all(
        len(was.token_ids) == len(was.samples) == len(share.token_ids) == len(share.samples) == 1
        and was.sequence_id == share.sequence_id
        and was.num_computed_tokens + 1 == share.num_computed_tokens
        for was, share in zip(before, now, strict=True)
    )
