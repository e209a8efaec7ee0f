"""What the scheduler remembers of the past: tokens served to each client, and how long outputs became.

Facts only, kept whatever the policies are; `token_shares.py` and `memory_forecast.py` read them. Engine thread.
"""

from __future__ import annotations

from collections import Counter, deque

COMPUTED_WEIGHT = 1
GENERATED_WEIGHT = 2
NUM_LENGTHS = 256
ENOUGH_LENGTHS = 16


class History:
    """The counters are those of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, section 4.1):
    generated tokens weigh double, and a client that comes back from idleness is lifted to the least of the active
    ones, so that time spent idle cannot be saved up.
    """

    def __init__(self) -> None:
        self._served: Counter[str] = Counter()
        self._num_live: Counter[str] = Counter()
        self._output_lengths: deque[int] = deque(maxlen=NUM_LENGTHS)

    def arrived(self, client: str) -> None:
        """The client has one more live request."""
        if client not in self._num_live and self._num_live:
            least = min(self._served[active] for active in self._num_live)
            self._served[client] = max(self._served[client], least)
        self._num_live[client] += 1

    def computed(self, client: str, num_tokens: int) -> None:
        """So many of the client's tokens were computed."""
        self._served[client] += COMPUTED_WEIGHT * num_tokens

    def decoded(self, client: str, num_tokens: int) -> None:
        """`num_tokens` tokens were computed, and as many generated. The decode batch tells of some later, but
        before anybody is admitted. Negative: of those that were told so many are nobody's."""
        self._served[client] += (COMPUTED_WEIGHT + GENERATED_WEIGHT) * num_tokens

    def generated(self, client: str, num_tokens: int) -> None:
        """So many tokens were drawn for the client."""
        self._served[client] += GENERATED_WEIGHT * num_tokens

    def choice_ended(self, num_output_tokens: int) -> None:
        """A choice of anybody has ended, however it did."""
        self._output_lengths.append(num_output_tokens)

    def request_ended(self, client: str) -> None:
        """The client has one live request fewer."""
        self._num_live[client] -= 1
        if self._num_live[client] == 0:
            del self._num_live[client]

    def served(self, client: str) -> int:
        """Weighted tokens."""
        return self._served[client]

    def likely_output_length(self) -> int | None:
        """Nine of ten recent choices were no longer; None before enough have ended."""
        if len(self._output_lengths) < ENOUGH_LENGTHS:
            return None
        return sorted(self._output_lengths)[len(self._output_lengths) * 9 // 10]
