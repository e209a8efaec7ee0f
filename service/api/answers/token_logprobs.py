"""Log probabilities as the APIs write them: completions, chat, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.api.answers.choice_text import ScoredToken
from service.core.iteration_result import TokenLogprobs
from service.protocol.generation import PromptLogprob
from service.text.detokenizer import make_detokenizer
from service.text.tokenizer import Tokenizer

_FLOOR = -9999.0
"""Stands for -inf, which JSON has no word for."""


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[ScoredToken], shift: int = 0) -> dict[str, Any]:
    """Fields of CompletionLogprobs. shift: characters of text before these tokens, to be added to their offsets.

    Among the top tokens the one that is there is always named.
    """
    return {
        "tokens": [_text(tokenizer, token.token_id) for token in tokens],
        "token_logprobs": [None if t.logprobs is None else _finite(t.logprobs.chosen) for t in tokens],
        "top_logprobs": [_top_by_text(tokenizer, token) for token in tokens],
        "text_offset": [token.offset + shift for token in tokens],
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Fields of ChatLogprobs."""
    entries = [_chat_entry(tokenizer, t.token_id, t.logprobs) for t in tokens if t.logprobs is not None]
    return {"content": entries, "refusal": None}


def prompt_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[dict[str, PromptLogprob] | None]:
    """One entry a token of the prompt: id -> PromptLogprob, of the token that is there and of the top ones."""
    entries: list[dict[str, PromptLogprob] | None] = [None]
    for token_id, entry in zip(token_ids[1:], logprobs, strict=True):
        assert entry.rank is not None, "prompt tokens are ranked"
        ranked = {each: (value, rank) for rank, (each, value) in enumerate(entry.top, 1)}
        ranked[token_id] = (entry.chosen, entry.rank)
        entries.append(
            {
                str(each): PromptLogprob(logprob=_finite(value), rank=rank, decoded_token=_text(tokenizer, each))
                for each, (value, rank) in ranked.items()
            }
        )
    return entries


def scored_prompt(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_top: int
) -> Iterator[ScoredToken]:
    """The prompt's tokens with the first `num_top` of their top logprobs; nothing predicts the first one."""
    detokenizer = make_detokenizer(tokenizer)
    offset = 0
    for token_id, entry in zip(token_ids, (None, *logprobs), strict=True):
        yield ScoredToken(token_id, None if entry is None else entry._replace(top=entry.top[:num_top]), offset)
        offset += len(detokenizer.push((token_id,)))


def _chat_entry(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
    entry = _chat_token(tokenizer, token_id, logprobs.chosen)
    entry["top_logprobs"] = [_chat_token(tokenizer, each, value) for each, value in logprobs.top]
    return entry


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = tokenizer.spelled_bytes[token_id]
    return {"token": _text(tokenizer, token_id), "logprob": _finite(logprob), "bytes": list(spelled)}


def _top_by_text(tokenizer: Tokenizer, token: ScoredToken) -> dict[str, float] | None:
    """Text -> log probability. Of tokens with the same text the chosen one counts, else the most probable one."""
    if token.logprobs is None:
        return None
    top: dict[str, float] = {}
    for token_id, value in token.logprobs.top:
        top.setdefault(_text(tokenizer, token_id), _finite(value))
    top[_text(tokenizer, token.token_id)] = _finite(token.logprobs.chosen)
    return top


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; where its bytes are no text by themselves, OpenAI's way to write them."""
    spelled = tokenizer.spelled_bytes[token_id]
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(logprob: float) -> float:
    return max(logprob, _FLOOR)
