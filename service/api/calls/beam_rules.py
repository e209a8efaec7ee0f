"""Beam search, an extension: `use_beam_search` with `beam_width`, `length_penalty` and `early_stopping`.

Beam search does not sample, so sampling parameters beside it are refused rather than ignored. The n best beams are the
choices; they are known when the search ends, so a stream has their text at its end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from service.api.calls.token_checks import check_range
from service.config import ApiConfig
from service.core.sampling_params import BeamParams, SamplingParams
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.generation import GenerationFields, SamplingFields

_MAX_TOP = 128
"""The most next tokens per beam that the executor returns."""
_MAX_PENALTY = 10.0

_NEUTRAL: dict[str, tuple[object, ...]] = {
    **{
        each.name: (each.default,)
        for each in dataclasses.fields(SamplingParams)
        if each.name in SamplingFields.model_fields
    },
    "temperature": (0, 1),
    "top_k": (-1, 0),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logprob_token_ids": ([],),
    "best_of": (),
}
"""Sampling fields -> the values, besides null, at which they have no effect."""


def check_beams(
    fields: GenerationFields, logprobs: int | None, form_param: str | None, config: ApiConfig
) -> BeamParams | None:
    """None if no beam search is asked for. Without beam_width, n is the width, as in vLLM.

    logprobs: number of top log probabilities per token of a choice; None: not asked for.
    form_param: the field that constrains the form of the output, if one does.
    """
    if not fields.use_beam_search:
        for name, neutral in (("beam_width", 1), ("length_penalty", 1), ("early_stopping", False)):
            if getattr(fields, name) not in (None, neutral):
                raise InvalidRequest(f"{name} is only allowed when use_beam_search is true.", param=name)
        return None
    for name, neutral_values in _NEUTRAL.items():
        if (value := getattr(fields, name)) is not None and value not in neutral_values:
            raise InvalidRequest(f"{name} is not allowed when use_beam_search is true.", param=name)
    if form_param is not None:
        raise UnsupportedParameter(f"{form_param} is not supported when use_beam_search is true.", param=form_param)
    if 0 in (fields.max_tokens, fields.max_completion_tokens):
        raise InvalidRequest("max_tokens must be at least 1 when use_beam_search is true, got 0.", param="max_tokens")
    n = fields.n or 1
    width = n if fields.beam_width is None else fields.beam_width
    check_range("beam_width", width, 2, config.max_beam_width)
    if n > width:
        raise InvalidRequest(f"n must be at most beam_width ({width}), got {n}.", param="n")
    length_penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
    if math.isnan(length_penalty):
        raise InvalidRequest("length_penalty must be a number.", param="length_penalty")
    check_range("length_penalty", length_penalty, -_MAX_PENALTY, _MAX_PENALTY)
    return BeamParams(width, length_penalty, fields.early_stopping or False, logprobs)


def num_top_logprobs(beam: BeamParams, stop_token_ids: Collection[int], vocab_size: int) -> int:
    """How many next tokens to ask for per beam: enough that some do not end it, and enough for the log probabilities to
    return."""
    num_top = beam.width + len(stop_token_ids)
    most = min(_MAX_TOP, vocab_size)
    if num_top > most:
        raise InvalidRequest(
            f"stop_token_ids: beam_width plus the number of tokens that end a beam (EOS and stop_token_ids) must be at "
            f"most {most}, got {num_top}.",
            param="stop_token_ids",
        )
    return max(num_top, min(most, beam.num_logprobs or 0))
