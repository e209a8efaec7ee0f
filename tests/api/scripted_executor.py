"""An executor that computes nothing: a function of a sequence's tokens says what comes next."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from service.core.adapter import AdapterLoad
from service.core.embedding import Vector
from service.core.iteration import IterationPlan, IterationResult
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.core.token_logprobs import TokenLogprobs
from tests.engine.late_executor import LateExecutor
from tests.structured.masks import nearest_allowed

Script = Callable[[Sequence[int], Sequence[int], int], int]
"""(prompt ids, ids so far, seed) -> next id; if a grammar forbids it, the next one that it allows is drawn."""


HIDDEN_SIZE = 6


def saying(ids: Sequence[int]) -> Script:
    """Says `ids`, then the last of them for ever."""
    return lambda prompt, so_far, seed: ids[min(len(so_far), len(ids) - 1)]


def logprobs_of(token_id: int, num_top: int | None) -> TokenLogprobs | None:
    """A model to which token i is as probable as -i / 100, whatever came before; id 10 is impossible."""
    if num_top is None:
        return None
    return TokenLogprobs(logprob_of(token_id), tuple((each, logprob_of(each)) for each in range(num_top)))


def logprob_of(token_id: int) -> float:
    return -math.inf if token_id == 10 else -token_id / 100


def scored_target(token_id: int, sampling: SamplingParams) -> TokenLogprobs:
    entry = logprobs_of(token_id, sampling.num_prompt_logprobs)
    assert entry is not None
    return entry._replace(rank=token_id + 1)


def hidden_state(token_ids: Sequence[int]) -> Vector:
    """Of the last one, in a model with hidden states of HIDDEN_SIZE."""
    mixed = sum(place * token_id for place, token_id in enumerate(token_ids, 1))
    return np.array([(mixed * (i + 3)) % 101 - 50 for i in range(HIDDEN_SIZE)], np.float32) / np.float32(7)


class ScriptedExecutor(LateExecutor):
    """Plays `script`, which may be replaced between requests.

    delay_s: how long an iteration takes. gate: while it is cleared, iterations wait. fault: raised if set.
    last_sampling: parameters of the sequence that was scheduled last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self._tokens: dict[int, list[int]] = {}
        self._num_prompt: dict[int, int] = {}
        self.reset(saying([0]))

    def reset(self, script: Script) -> None:
        self.script = script
        self.delay_s = 0.0
        self.gate.set()
        self.fault: Exception | None = None
        self.num_iterations = 0
        self.last_sampling = SamplingParams(max_tokens=1)
        self.adapter_loads: list[AdapterLoad] = []
        self.adapter_slots: list[int] = []  # of each sequence, when it was first scheduled

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.num_iterations += 1
        self.gate.wait(10)
        time.sleep(self.delay_s)
        if self.fault is not None:
            raise self.fault
        self.adapter_loads += plan.adapter_loads
        self.adapter_slots += [item.adapter_slot for item in plan.scheduled if item.num_computed_tokens == 0]
        drawn = [token_id for item in plan.scheduled for token_id in self._draw(item)]
        if plan.masks is not None:
            drawn = nearest_allowed(drawn, plan.masks)
        asked = [item.sampling.num_logprobs for item in plan.scheduled for _ in item.samples]
        return IterationResult(
            tuple(drawn),
            logprobs=tuple(logprobs_of(token_id, num) for token_id, num in zip(drawn, asked, strict=True)),
            prompt_logprobs=tuple(
                (item.sequence_id, tuple(scored_target(each, item.sampling) for each in item.targets))
                for item in plan.scheduled
                if item.targets
            ),
            pooled=tuple(
                (item.sequence_id, hidden_state(self._tokens[item.sequence_id]))
                for item in plan.scheduled
                if item.num_pooled
            ),
        )

    def _draw(self, item: ScheduledSequence) -> list[int]:
        self.last_sampling = item.sampling
        tokens = self._tokens.setdefault(item.sequence_id, [])
        tokens[item.num_computed_tokens :] = item.token_ids
        drawn = []
        for sample in item.samples:
            num_prompt = self._num_prompt.setdefault(item.sequence_id, len(tokens))
            if sample.sequence_id != item.sequence_id:
                self._tokens[sample.sequence_id] = list(tokens)
                self._num_prompt[sample.sequence_id] = num_prompt
            drawn.append(self.script(tokens[:num_prompt], tokens[num_prompt:], sample.seed))
        return drawn
