"""Log probabilities in the forms of the APIs: completions, chat, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.api.answers.choice_text import ScoredToken
from service.core.token_logprobs import TokenLogprobs
from service.protocol.generation import PromptLogprob
from service.text.detokenizer import make_detokenizer
from service.text.tokenizer import Tokenizer

_FLOOR = -9999.0
"""Stands for -inf, which JSON cannot express."""


class TokenNames:
    """How an answer spells its tokens. as_ids: as `token_id:5`, which tells apart tokens with the same text (vLLM's
    return_tokens_as_token_ids); else by their text."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._spelled_bytes = tokenizer.spelled_bytes
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self.text(token_id)

    def text(self, token_id: int) -> str:
        """The token's text; if its bytes are not valid UTF-8 by themselves, in OpenAI's escaped form."""
        spelled = self._spelled_bytes[token_id]
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def true_bytes(self, token_id: int) -> list[int]:
        return list(self._spelled_bytes[token_id])


def completion_logprobs(names: TokenNames, tokens: Sequence[ScoredToken], shift: int = 0) -> dict[str, Any]:
    """Fields of CompletionLogprobs. shift: characters of text before these tokens, added to their offsets.

    The chosen token is always among the top tokens.
    """
    return {
        "tokens": [names.name(token.token_id) for token in tokens],
        "token_logprobs": [None if t.logprobs is None else _finite(t.logprobs.chosen) for t in tokens],
        "top_logprobs": [_top_by_name(names, token) for token in tokens],
        "text_offset": [token.offset + shift for token in tokens],
    }


def chat_logprobs(names: TokenNames, tokens: Sequence[ScoredToken], *, names_chosen: bool = False) -> dict[str, Any]:
    """Fields of ChatLogprobs. names_chosen: always list the chosen token among the top ones."""
    entries = [_chat_entry(names, t.token_id, t.logprobs, names_chosen) for t in tokens if t.logprobs is not None]
    return {"content": entries, "refusal": None}


def prompt_logprobs(
    names: TokenNames, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[dict[str, PromptLogprob] | None]:
    """One entry per prompt token: id -> PromptLogprob of the prompt's token, which comes first, and of the top ones.
    vLLM's clients rely on that order."""
    entries: list[dict[str, PromptLogprob] | None] = [None]
    for token_id, entry in zip(token_ids[1:], logprobs, strict=True):
        assert entry.rank is not None, "prompt tokens are ranked"
        ranked = {token_id: (entry.chosen, entry.rank)}
        for rank, (each, value) in enumerate(entry.top, 1):
            ranked.setdefault(each, (value, rank))
        entries.append(
            {
                str(each): PromptLogprob(logprob=_finite(value), rank=rank, decoded_token=names.text(each))
                for each, (value, rank) in ranked.items()
            }
        )
    return entries


def scored_prompt(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_top: int
) -> Iterator[ScoredToken]:
    """The prompt's tokens with the first `num_top` of their top logprobs; the first token has none."""
    detokenizer = make_detokenizer(tokenizer)
    offset = 0
    for token_id, entry in zip(token_ids, (None, *logprobs), strict=True):
        yield ScoredToken(token_id, None if entry is None else entry._replace(top=entry.top[:num_top]), offset)
        offset += len(detokenizer.push((token_id,)))


def _chat_entry(names: TokenNames, token_id: int, logprobs: TokenLogprobs, names_chosen: bool) -> dict[str, Any]:
    entry = _chat_token(names, token_id, logprobs.chosen)
    top = [_chat_token(names, each, value) for each, value in logprobs.top]
    is_missing = names_chosen and all(each != token_id for each, _ in logprobs.top)
    return {**entry, "top_logprobs": [entry, *top] if is_missing else top}


def _chat_token(names: TokenNames, token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": names.name(token_id), "logprob": _finite(logprob), "bytes": names.true_bytes(token_id)}


def _top_by_name(names: TokenNames, token: ScoredToken) -> dict[str, float] | None:
    """Name -> log probability, with the chosen token first, as vLLM does. Of several tokens with the same name the
    chosen one counts, else the most probable one."""
    if token.logprobs is None:
        return None
    top = {names.name(token.token_id): _finite(token.logprobs.chosen)}
    for token_id, value in token.logprobs.top:
        top.setdefault(names.name(token_id), _finite(value))
    return top


def _finite(logprob: float) -> float:
    return max(logprob, _FLOOR)
