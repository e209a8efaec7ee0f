"""Beam search: which continuations of a request's beams go on, and which become finished hypotheses.

Gives the same result as Hugging Face's `generate(num_beams=..., do_sample=False)`: beams are ranked by their sum of log
probabilities; a finished sum is divided by generated length ** `length_penalty`; `early_stopping` has the same three
modes. Only tokens and sums here: the scheduler forks the blocks (PagedAttention, section 4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.core.request import FinishReason
from service.core.sampling_params import BeamParams, SamplingParams
from service.core.token_logprobs import TokenLogprobs

Tops = Sequence[Sequence[tuple[int, float]]]
"""For each beam its most probable next tokens and their log probabilities, best first."""


class Hypothesis(NamedTuple):
    """A finished continuation. score: its sum of log probabilities / length ** length_penalty.

    logprobs: one entry per token if the request wants them, else empty.
    """

    score: float
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()


class Continuation(NamedTuple):
    """A beam of the next step: the index of the beam that it extends, and its new token."""

    parent: int
    token_id: int


class _Beam(NamedTuple):
    """logprob: sum over the generated tokens. logprobs: as in Hypothesis."""

    token_ids: tuple[int, ...]
    logprob: float
    logprobs: tuple[TokenLogprobs, ...] = ()


class _Candidate(NamedTuple):
    """A beam extended by one token. logprob: the new sum. own: the new token's logprob.

    Tuples are compared in field order: the greater sum wins, and on equal sums the earlier beam. That is why the
    parent's index is stored as a negative number.
    """

    logprob: float
    negative_parent: int
    token_id: int
    own: float

    @property
    def parent(self) -> int:
        return -self.negative_parent


class BeamSearch:
    """The search of one request. Beam i is the group's i-th sequence; at first there is only beam 0. Engine thread."""

    def __init__(self, sampling: SamplingParams) -> None:
        assert sampling.beam is not None
        self._params: BeamParams = sampling.beam
        self._stops = sampling.stop_token_ids
        self._max_tokens = sampling.max_tokens
        self._beams = [_Beam((), 0.0)]
        self._finished: list[Hypothesis] = []

    def advance(self, tops: Tops) -> list[Continuation]:
        """Choose the `width` beams of the next step; empty if the search is over. If several new beams extend beam i,
        the best of them is at place i.

        tops: per beam, at least width + (number of stop tokens) entries.
        """
        length = len(self._beams[0].token_ids) + 1
        width = self._params.width
        candidates = sorted(
            (
                _Candidate(beam.logprob + logprob, -index, token_id, logprob)
                for index, beam in enumerate(self._beams)
                for token_id, logprob in tops[index]
            ),
            reverse=True,
        )
        ends = length == self._max_tokens
        going_on: list[_Candidate] = []
        for rank, candidate in enumerate(candidates):
            if ends or candidate.token_id in self._stops:
                if rank < width:
                    self._finish(self._continued(candidate, tops))
            elif len(going_on) < width:
                going_on.append(candidate)
        if ends or self._is_settled(going_on[0].logprob, length):
            return []
        return self._go_on(going_on, tops)

    def best(self, count: int) -> list[Hypothesis]:
        """The best hypotheses, best first. Only after the search is over."""
        return self._finished[:count]

    def _continued(self, candidate: _Candidate, tops: Tops) -> _Beam:
        parent = self._beams[candidate.parent]
        logprobs = parent.logprobs
        if self._params.num_logprobs is not None:
            top = tuple(tops[candidate.parent][: self._params.num_logprobs])
            logprobs = (*logprobs, TokenLogprobs(candidate.own, top))
        return _Beam((*parent.token_ids, candidate.token_id), candidate.logprob, logprobs)

    def _finish(self, beam: _Beam) -> None:
        score = float(beam.logprob / len(beam.token_ids) ** self._params.length_penalty)
        reason = FinishReason.STOP if beam.token_ids[-1] in self._stops else FinishReason.LENGTH
        self._finished.append(Hypothesis(score, beam.token_ids, reason, beam.logprobs))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self._params.width :]

    def _is_settled(self, best_logprob: float, length: int) -> bool:
        """Whether there are `width` hypotheses and, by `early_stopping`, no beam can beat the worst of them."""
        if len(self._finished) < self._params.width:
            return False
        if self._params.early_stopping is True:
            return True
        penalty = self._params.length_penalty
        if self._params.early_stopping == "never" and penalty > 0:
            length = self._max_tokens
        return bool(best_logprob / length**penalty <= self._finished[-1].score)

    def _go_on(self, chosen: list[_Candidate], tops: Tops) -> list[Continuation]:
        """Order the new beams: a beam's best child takes its place, further children the places of childless beams."""
        placed: dict[int, _Candidate] = {}
        others = []
        for candidate in chosen:
            if candidate.parent in placed:
                others.append(candidate)
            else:
                placed[candidate.parent] = candidate
        free = (place for place in range(self._params.width) if place not in placed)
        placed.update(zip(free, others, strict=False))
        in_order = [placed[place] for place in range(self._params.width)]
        self._beams = [self._continued(candidate, tops) for candidate in in_order]
        return [Continuation(candidate.parent, candidate.token_id) for candidate in in_order]
