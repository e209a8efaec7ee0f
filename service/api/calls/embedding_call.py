"""The fields of POST /v1/embeddings -> a checked call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import Receive

from service.api.call_head import CallHead
from service.api.calls.prepared_call import scoped_salt
from service.api.calls.prompt_ids import PromptBound, as_prompts, empty_prompt, prompt_token_ids
from service.api.calls.token_budget import max_tokens_for
from service.api.calls.token_checks import check_range
from service.api.calls.unsupported import check_extra_fields
from service.api.calls.validation import check_cache_salt, find_adapter, ignored_fields
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.adapter import Adapter
from service.core.embedding import EmbedderConfig
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.embeddings import EmbeddingRequest
from service.protocol.generation import GenerationFields

_PARAM = "input"
_CHARACTERS_OF_AN_INPUT = 64
"""The cost of an input besides its text, in characters that are tokenized."""
_IDS_A_CHARACTER = 16


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """A checked call. model: its name in the answer. requests: one per input. size: dimensions that vectors are cut to;
    None: all. is_base64: the encoding of vectors. ignored: unknown fields, named in the answer's header."""

    head: CallHead
    served: ServedModel
    embedder: EmbedderConfig
    model: str
    requests: Sequence[Request]
    size: int | None
    is_base64: bool
    ignored: tuple[str, ...]


async def prepare_embedding(
    fields: EmbeddingRequest,
    head: CallHead,
    receive: Receive,
    served: ServedModel,
    embedder: EmbedderConfig,
    context: ApiContext,
) -> EmbeddingCall:
    """Refuses, by name, whatever can be refused before the engine is asked. receive: of the request, whose body has
    been read."""
    config = context.config
    adapter = await find_adapter(fields.model, served.adapters, config)
    ignored = ignored_fields(_extra_fields(fields), config)
    _check_size(fields.dimensions, embedder)
    salt = scoped_salt(check_cache_salt(fields.cache_salt, config), head.client, config)
    inputs = _inputs(fields, config)
    served.engine.check_accepts()
    bound = PromptBound(served, _PARAM)
    bound.check_characters(max((len(each) for each in inputs if isinstance(each, str)), default=0))
    special = fields.add_special_tokens is not False

    def build(check_cancelled: Callable[[], None]) -> list[Request]:
        token_ids = (prompt_token_ids(each, bound, special, check_cancelled) for each in inputs)
        return [_request(i, ids, head, served, embedder, salt, adapter) for i, ids in enumerate(token_ids)]

    num_characters = sum(len(each) if isinstance(each, str) else len(each) // _IDS_A_CHARACTER for each in inputs)
    num_characters += _CHARACTERS_OF_AN_INPUT * len(inputs)
    return EmbeddingCall(
        head,
        served,
        embedder,
        config.served_model_names[0] if adapter is None else adapter.name,
        await context.texts.run_prompt(receive, num_characters, build),
        fields.dimensions,
        fields.encoding_format == "base64",
        ignored,
    )


def _inputs(fields: EmbeddingRequest, config: ApiConfig) -> list[str | list[int]]:
    inputs = as_prompts(fields.input)
    if len(inputs) > config.max_inputs_per_call:
        raise InvalidRequest(
            f"{_PARAM} may hold at most {config.max_inputs_per_call} inputs, got {len(inputs)}.", param=_PARAM
        )
    if not all(inputs):
        raise empty_prompt(_PARAM)
    return inputs


def _request(
    index: int,
    token_ids: list[int],
    head: CallHead,
    served: ServedModel,
    embedder: EmbedderConfig,
    cache_salt: str,
    adapter: Adapter | None,
) -> Request:
    """The request of one input; ContextLengthExceeded if it does not fit."""
    max_tokens = max_tokens_for(
        num_prompt_tokens=len(token_ids),
        asked=0,
        min_tokens=0,
        default=None,
        max_model_len=served.max_model_len,
        room=1,
        prompt_param=_PARAM,
        param=_PARAM,
    )
    return Request(
        f"{head.call_id}-{index}",
        tuple(token_ids),
        SamplingParams(max_tokens, temperature=0.0, pooling=embedder.pooling),
        head.arrival_s,
        cache_salt,
        client=head.client,
        adapter=adapter,
        is_background=head.is_background,
    )


def _extra_fields(fields: EmbeddingRequest) -> tuple[str, ...]:
    """The unknown fields. Fields of endpoints that generate are refused."""
    extra = {name: value for name, value in (fields.model_extra or {}).items() if value is not None}
    for name in extra.keys() & GenerationFields.model_fields.keys():
        raise UnsupportedParameter(f"{name} is not supported for embeddings.", param=name)
    return check_extra_fields(extra)


def _check_size(size: int | None, embedder: EmbedderConfig) -> None:
    check_range("dimensions", size, 1, embedder.size)
    if size is not None and embedder.dimensions and size not in (*embedder.dimensions, embedder.size):
        there_are = ", ".join(map(str, embedder.dimensions))
        raise InvalidRequest(f"dimensions: this model supports {there_are}, got {size}.", param="dimensions")
