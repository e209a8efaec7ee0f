"""Output that must match a grammar: what is asked for, and what stands behind it, as Protocols.

`service/structured` implements them; the engine and the API know no more than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, Protocol

from service.errors import InvalidRequest

STANDARD_WHITESPACE = r"( |\r?\n[ \t]{0,40})?"
"""Between two tokens of JSON: nothing, a space, or a new line and its indentation.

JSON allows any white space, and a model that has lost its way writes it without end; bounded, it has to go on.
"""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What the output must be.

    kind, source: `json_schema`, the schema as JSON text; `regex`, a pattern for the whole output; `choice`, a JSON
        list of texts; `grammar`, a client's Lark or GBNF; `lark`, our own.
    param: the request field that asked for it, to be named in refusals.
    whitespace: for a schema, a pattern of what may stand between its tokens; None: the standard; empty: nothing.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "lark"]
    source: str
    param: str
    whitespace: str | None = None


class Reasoning(Enum):
    """Whether a model that thinks may do so before the grammar begins."""

    NONE = auto()
    MAY_BEGIN = auto()  # it opens the reasoning itself, or answers at once
    BEGUN = auto()  # the prompt has opened it


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How long a model may think.

    num_tokens: of reasoning that may come; then it is ended. think, end_think: ids that begin and end it. is_thinking:
    the prompt has begun it. think is None where only a prompt does.
    """

    num_tokens: int
    think: int | None
    end_think: int
    is_thinking: bool


class Matcher(Protocol):
    """Where one sequence stands in its grammar. Engine thread only."""

    @property
    def allows_anything(self) -> bool:
        """Whether the next token may be any, so that it needs no mask. Does not change state."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by a token. False: it does not fit, or the grammar has outgrown its limits; nothing follows then."""
        ...

    @property
    def refusal(self) -> InvalidRequest | None:
        """What the client is told after `accept` was False, if it was the grammar's fault; None: it was ours."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing can follow. Does not change state."""
        ...

    def fork(self) -> Matcher:
        """Another sequence at the same place."""
        ...


class Grammar(Protocol):
    """A compiled grammar. Any thread."""

    @property
    def follows_reasoning(self) -> bool:
        """Whether the model may think first; else the grammar holds from the first token on."""
        ...

    def start(self) -> Matcher: ...


class Grammars(Protocol):
    """Compiles what requests ask for. Event-loop thread; the work is done elsewhere."""

    async def compile(self, spec: GrammarSpec, reasoning: Reasoning = Reasoning.NONE) -> Grammar:
        """InvalidRequest that names the field and the keyword if it cannot be honoured."""
        ...

    def limited(self, grammar: Grammar | None, budget: ThinkingBudget) -> Grammar:
        """The grammar behind reasoning that is ended when the budget is spent; None: any text behind it."""
        ...


class TokenMasks(Protocol):
    """What the draws of one iteration may be; perhaps still being computed."""

    @property
    def rows(self) -> Sequence[int]:
        """One entry a draw, in the plan's order: its row of `wait`, or -1: it may be anything."""
        ...

    def wait(self) -> memoryview:
        """[number of masks, ceil(vocabulary / 32)] int32, contiguous: bit t % 32 of word t // 32 allows token t.

        Valid until the masks after the next are begun: two iterations may run at once.
        """
        ...


class TokenMasker(Protocol):
    """Computes masks beside the forward pass. Engine thread."""

    def begin(self, matchers: Sequence[Matcher], rows: Sequence[int]) -> TokenMasks:
        """Masks of these matchers, all different, which stay as they are until `wait` has returned."""
        ...
