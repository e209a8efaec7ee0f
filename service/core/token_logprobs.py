"""What a request may be told about a token besides its id."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """Log probabilities at one position, of the plain model output: before penalties, masks and temperature.

    chosen: of the actual token. top: (id, logprob) pairs: the most probable tokens, best first, as many as asked for;
    or the tokens that were asked for, in the order of the request. rank: of the actual token, 1 for the most probable;
    set for prompt tokens only.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None
