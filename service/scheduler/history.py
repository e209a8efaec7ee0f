"""What the scheduler remembers: tokens served per client, and the lengths of recent outputs.

Recorded whatever the policies are; `token_shares.py` and `memory_forecast.py` read it. Engine thread.
"""

from __future__ import annotations

from collections import Counter, deque

COMPUTED_WEIGHT = 1
GENERATED_WEIGHT = 2
NUM_LENGTHS = 256
ENOUGH_LENGTHS = 16


class History:
    """Counters as in "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, section 4.1): a generated
    token weighs twice a prompt token, and a client that becomes active again is raised to the lowest counter among the
    active ones, so that idle time cannot be saved up.
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
        """Tokens of the client were computed."""
        self._served[client] += COMPUTED_WEIGHT * num_tokens

    def decoded(self, client: str, num_tokens: int) -> None:
        """Tokens of the client were computed, and as many generated. The decode batch reports its tokens late, but
        always before an admission. A negative number takes back tokens that were reported and then dropped."""
        self._served[client] += (COMPUTED_WEIGHT + GENERATED_WEIGHT) * num_tokens

    def generated(self, client: str, num_tokens: int) -> None:
        """Tokens were generated for the client."""
        self._served[client] += GENERATED_WEIGHT * num_tokens

    def choice_ended(self, num_output_tokens: int) -> None:
        """A choice of any client has ended, in whatever way."""
        self._output_lengths.append(num_output_tokens)

    def request_ended(self, client: str) -> None:
        """The client has one live request fewer."""
        self._num_live[client] -= 1
        if self._num_live[client] == 0:
            del self._num_live[client]

    def served(self, client: str) -> int:
        """Weighted tokens served to the client."""
        return self._served[client]

    def likely_output_length(self) -> int | None:
        """90th percentile of recent output lengths; None before ENOUGH_LENGTHS choices have ended."""
        if len(self._output_lengths) < ENOUGH_LENGTHS:
            return None
        return sorted(self._output_lengths)[len(self._output_lengths) * 9 // 10]
