"""Output that must match a grammar: the specification, and Protocols for what enforces it.

`service/structured` implements them; engine and API see only these Protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, Protocol

from service.errors import InvalidRequest

STANDARD_WHITESPACE = r"( |\r?\n[ \t]{0,40})?"
"""What may stand between two tokens of JSON: nothing, a space, or a newline with indentation.

JSON allows any amount of white space, and a model that has lost its way would produce it without end.
"""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What the output must match.

    kind, source: `json_schema`: a schema as JSON text; `regex`: a pattern for the whole output; `choice`: a JSON list
        of strings; `grammar`: Lark or GBNF from a client; `lark`: our own Lark.
    param: the request field that it came from, for error messages.
    whitespace: for a schema, a pattern for what may stand between tokens; None: STANDARD_WHITESPACE; empty: nothing.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "lark"]
    source: str
    param: str
    whitespace: str | None = None


class Reasoning(Enum):
    """Whether the model may think (produce reasoning) before the grammar applies."""

    NONE = auto()
    MAY_BEGIN = auto()  # the model may open the reasoning itself, or answer at once
    BEGUN = auto()  # the prompt ends inside the reasoning


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How long a model may think.

    num_tokens: reasoning is ended after so many tokens. think, end_think: ids that begin and end it; think is None if
    only a prompt can begin it. is_thinking: the prompt has begun it.
    """

    num_tokens: int
    think: int | None
    end_think: int
    is_thinking: bool


class Matcher(Protocol):
    """The position of one sequence in its grammar. Engine thread only."""

    @property
    def allows_anything(self) -> bool:
        """Whether every token is allowed next, so that no mask is needed. Does not change state."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token. False if it does not match, or if the grammar exceeds its limits; do not go on then."""
        ...

    @property
    def refusal(self) -> InvalidRequest | None:
        """After `accept` returned False: the error for the client if the grammar was at fault; None if we were."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing may follow. Does not change state."""
        ...

    def fork(self) -> Matcher:
        """A copy at the same position, for another sequence."""
        ...


class Grammar(Protocol):
    """A compiled grammar. Any thread."""

    @property
    def follows_reasoning(self) -> bool:
        """Whether the model may think first. If not, the grammar applies from the first token on."""
        ...

    def start(self) -> Matcher: ...


class Grammars(Protocol):
    """Compiles the grammars of requests. Event-loop thread; the work itself is done elsewhere."""

    async def compile(self, spec: GrammarSpec, reasoning: Reasoning = Reasoning.NONE) -> Grammar:
        """Raises InvalidRequest, naming field and keyword, if the specification is invalid or not supported."""
        ...

    def limited(self, grammar: Grammar | None, budget: ThinkingBudget) -> Grammar:
        """A grammar for reasoning of at most `budget.num_tokens` tokens, then `grammar`; None: then any text."""
        ...


class TokenMasks(Protocol):
    """Which ids the draws of one iteration may give. May still be in computation."""

    @property
    def rows(self) -> Sequence[int]:
        """One entry per draw, in the plan's order: its row in `wait`'s result; -1: any id is allowed."""
        ...

    def wait(self) -> memoryview:
        """int32 [number of masks, ceil(vocabulary / 32)], contiguous: bit t % 32 of word t // 32 allows token t.

        The second `begin` after this one's may overwrite it: two iterations can be in flight.
        """
        ...


class TokenMasker(Protocol):
    """Computes masks beside the forward pass. Engine thread only."""

    def begin(self, matchers: Sequence[Matcher], rows: Sequence[int]) -> TokenMasks:
        """Start to compute one mask per matcher. The matchers are distinct, and must not change until `wait` ends."""
        ...
