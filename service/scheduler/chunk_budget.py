"""How many prompt tokens an iteration computes beside its decodes (chunked prefill: Sarathi-Serve, OSDI 2024, 4.2)."""

from __future__ import annotations

from typing import Protocol

from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload

MIN_CHUNK = 32
"""The least prompt tokens per iteration, if so many wait: prompts must make progress, too."""

PIECE = 256
"""Tokens. A GPU takes as long to read the weights as to multiply about 300 rows with them. Up to there, prompt tokens
beside decodes cost less than on their own; beyond, twice the tokens take twice the time."""

USUAL_TOKENS = 2048
"""Tokens per iteration. Llama-8B on one H200 computes so many in 48 ms. Twice as many would be 2 % cheaper per token,
but decodes and new requests would wait twice as long."""

DEEP_QUEUE = 16
"""With so many full iterations of prompt tokens waiting, those 2 % matter more than the longer wait."""

FEW_A_DECODE = 16
"""Waiting prompt tokens per decode up to which iterations are half a PIECE shorter. Any value from 12 to 20 gives the
same for Llama-8B on one H200, in a simulation with the measured times of its steps (loadtest/log/serving.md)."""


class ChunkBudget(Protocol):
    def num_tokens(self, num_decodes: int, num_read: int, start: int, num_waiting: int) -> int:
        """How many prompt tokens to compute beside `num_decodes` decodes, which attend to `num_read` tokens. start: the
        position of the first of these tokens in its prompt. num_waiting: prompt tokens still to be computed, of all
        requests. At least 1; together with the decodes at most max_num_batched_tokens."""
        ...


class FixedBudget:
    """Whatever the decodes leave of the token budget."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_tokens = max_num_batched_tokens

    def num_tokens(self, num_decodes: int, num_read: int, start: int, num_waiting: int) -> int:
        return self._max_tokens - num_decodes


class InPieces:
    """Throughput if much waits, short iterations if little does.

    Nothing decodes, or more than USUAL_TOKENS wait: fill the iteration up to USUAL_TOKENS tokens, or up to the whole
    budget once DEEP_QUEUE full iterations wait.
    Otherwise: fill it up to the next multiple of PIECE, with at least PIECE prompt tokens. Computing all waiting ones
    at once would take as long, and each decode would get one token in that time in place of several. If at most
    FEW_A_DECODE tokens wait per decode, at least half a PIECE: the decodes then gain more from short iterations than
    the prompts lose by one more of them.
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
    """As many prompt tokens as let the iteration end within the target for inter-token latency, by the fitted
    predictor. The whole token budget if nothing decodes.

    The predictor learns from measurements, so the budget adapts to the machine. On a GPU it counts device time only,
    since host work is hidden when iterations overlap. If the target is too short for any prompt: MIN_CHUNK.
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
        while low < high:  # bisect: more tokens never take less time
            middle = (low + high + 1) // 2
            workload = Workload.of_chunk(start, middle, num_decodes, num_read, heat)
            predicted_s = self._iteration_time.predicted_s(workload)
            if predicted_s is None or predicted_s <= self._target_s:
                low = middle
            else:
                high = middle - 1
        return low
