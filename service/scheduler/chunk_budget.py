"""How many prompt tokens an iteration computes beside its decodes (chunked prefill: Sarathi-Serve, OSDI 2024, 4.2)."""

from __future__ import annotations

from typing import Protocol

from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload

MIN_CHUNK = 32
"""Prompt tokens that an iteration computes at least, if as many wait: prompts must make progress too."""

PIECE = 256
"""Tokens; a GPU reads weights for as long as it multiplies some 300 rows with them. Up to there a prompt beside decodes
costs less than by itself; beyond, an iteration of twice the tokens takes twice the time."""

USUAL_TOKENS = 2048
"""Of an iteration; Llama-8B on one H200 computes as many in 48 ms. Twice as many take 2 % less than twice the time, but
whoever comes, or decodes, waits twice as long."""

DEEP_QUEUE = 16
"""Iterations of the whole token budget that wait: then 2 % are more than such a wait."""

FEW_A_DECODE = 16
"""Waiting prompt tokens a decode, up to which iterations are shorter still. Between 12 and 20 it makes no difference
for Llama-8B on one H200, by a simulation over the measured times of its steps (loadtest/log/serving.md)."""


class ChunkBudget(Protocol):
    def num_tokens(self, num_decodes: int, num_read: int, start: int, num_waiting: int) -> int:
        """How many prompt tokens to compute beside so many decodes, which attend to `num_read` tokens. start: the
        position of the first of them in its prompt. num_waiting: prompt tokens that are to be computed by now. At least
        1; with the decodes never more than fit an iteration."""
        ...


class FixedBudget:
    """Whatever the decodes leave of the token budget."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_tokens = max_num_batched_tokens

    def num_tokens(self, num_decodes: int, num_read: int, start: int, num_waiting: int) -> int:
        return self._max_tokens - num_decodes


class InPieces:
    """Beside decodes, while one iteration of USUAL_TOKENS could compute all waiting prompt tokens: only as many as fill
    it up to a multiple of PIECE, and at least PIECE. All at once would take no less time, and meanwhile each decode
    would get one token instead of several. At least half a PIECE if no more than FEW_A_DECODE tokens wait for each
    decode: then the answers gain more by short iterations than the prompts lose by waiting for one more of them.
    USUAL_TOKENS if more tokens wait (throughput counts then) or nothing decodes, and the whole token budget once a
    DEEP_QUEUE waits.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_tokens = max_num_batched_tokens

    def num_tokens(self, num_decodes: int, num_read: int, start: int, num_waiting: int) -> int:
        most = self._max_tokens
        if num_waiting < DEEP_QUEUE * most:
            most = min(most, max(USUAL_TOKENS, 2 * num_decodes))
        if num_decodes and num_waiting <= most:
            least = PIECE // 2 if num_waiting <= FEW_A_DECODE * num_decodes else PIECE
            most = min(most, -(-(num_decodes + least) // PIECE) * PIECE)
        return most - num_decodes


class InterTokenTarget:
    """As many prompt tokens as let the iteration end within the target, by the fitted predictor: a decode waits for one
    iteration between two of its tokens. The whole token budget is used when nothing decodes.

    The predictor follows the machine, so the budget follows what is measured: on a GPU what the device computes, since
    the host's part passes meanwhile where iterations overlap. A target too short for any prompt gives the minimum.
    """

    def __init__(self, iteration_time: IterationTime, target_s: float, max_num_batched_tokens: int) -> None:
        self._iteration_time = iteration_time
        self._target_s = target_s
        self._max_tokens = max_num_batched_tokens

    def num_tokens(self, num_decodes: int, num_read: int, start: int, num_waiting: int) -> int:
        most = self._max_tokens - num_decodes
        if not num_decodes:
            return most
        heat = self._iteration_time.heat.level
        low, high = min(MIN_CHUNK, most), most
        while low < high:  # the most tokens that end in time; more tokens never take less
            middle = (low + high + 1) // 2
            workload = Workload.of_chunk(start, middle, num_decodes, num_read, heat)
            predicted_s = self._iteration_time.predicted_s(workload)
            if predicted_s is None or predicted_s <= self._target_s:
                low = middle
            else:
                high = middle - 1
        return low
