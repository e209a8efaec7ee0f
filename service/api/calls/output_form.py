"""The form of the output: response_format, its extensions, other servers' spellings -> one checked GrammarSpec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from service.api.calls.schema_limits import check_grammar, check_regex_size, schema_text
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.grammar import Grammar, GrammarSpec, Reasoning
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.generation import GenerationFields, ResponseFormat, StructuredOutputs
from service.text.tag_grammar import tag_grammar

ANY_OBJECT = '{"type":"object"}'


def check_output_form(fields: GenerationFields, config: ApiConfig) -> GrammarSpec | None:
    """None if the output may be any text. Refuses, by name, a constraint that is too large, and two constraints at
    once."""
    specs = [*_of_response_format(fields.response_format, config), *_of_structured(fields.structured_outputs, config)]
    for name in ("regex", "guided_regex"):
        specs += _regex(getattr(fields, name), name, config)
    for name in ("choice", "guided_choice"):
        specs += _choice(getattr(fields, name), name, config)
    for name in ("grammar", "guided_grammar", "ebnf"):
        specs += _grammar(getattr(fields, name), name, config)
    for name in ("json_schema", "guided_json"):
        specs += _json(getattr(fields, name), name, config)
    if len(specs) > 1:
        both = f"{specs[0].param} and {specs[1].param}"
        raise InvalidRequest(f"{both} cannot be combined: an output can have only one form.", param=specs[1].param)
    return specs[0] if specs else None


class CompiledForm(NamedTuple):
    """The grammar that constrains the output, and the seconds that compiling it took; None: any text."""

    grammar: Grammar | None = None
    seconds: float | None = None


async def compile_form(
    spec: GrammarSpec | None, model: ServedModel, reasoning: Reasoning = Reasoning.NONE
) -> CompiledForm:
    """InvalidRequest if the constraint cannot be compiled."""
    if spec is None:
        return CompiledForm()
    if model.grammars is None:
        raise UnsupportedParameter(f"{spec.param} is not supported by this server.", param=spec.param)
    started_s = model.clock.now_s()
    grammar = await model.grammars.compile(spec, reasoning)
    return CompiledForm(grammar, model.clock.now_s() - started_s)


def _of_response_format(format_: ResponseFormat | None, config: ApiConfig) -> list[GrammarSpec]:
    if format_ is None:
        return []
    param = "response_format.json_schema.schema"
    tag = {"format": format_.format, "structures": format_.structures, "triggers": format_.triggers}
    tag = {name: value for name, value in tag.items() if value is not None}
    if format_.type == "structural_tag":
        return _structural_tag(tag, "response_format", config)
    if tag:
        name = f"response_format.{next(iter(tag))}"
        raise UnsupportedParameter(f"{name} is only allowed with type structural_tag.", param=name)
    if format_.type == "json_object":
        if format_.schema_ is not None:
            return _json(format_.schema_, "response_format.schema", config)
        return [GrammarSpec("json_schema", ANY_OBJECT, "response_format")]
    if format_.schema_ is not None:
        raise UnsupportedParameter(
            f"response_format.schema is only allowed with type json_object; put the schema in {param}.",
            param="response_format.schema",
        )
    if format_.type == "text":
        return []
    if format_.json_schema is None:
        whole = "response_format.json_schema"
        raise InvalidRequest(f"{whole} is required.", param=whole, code="missing_required_parameter")
    schema = format_.json_schema.schema_
    if schema is None and format_.json_schema.model_extra:  # perhaps the schema itself is one level too high
        raise InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")
    if schema is None:
        return [GrammarSpec("json_schema", ANY_OBJECT, "response_format.json_schema")]
    return _json(schema, param, config)


def _of_structured(outputs: StructuredOutputs | None, config: ApiConfig) -> list[GrammarSpec]:
    if outputs is None:
        return []
    where = "structured_outputs"
    for name, value in (outputs.model_extra or {}).items():
        if value not in (None, False):
            raise UnsupportedParameter(f"{where}.{name[:64]} is not supported.", param=f"{where}.{name[:64]}")
    whitespace = "" if outputs.disable_any_whitespace else outputs.whitespace_pattern
    if whitespace:
        check_regex_size(whitespace, f"{where}.whitespace_pattern", config)
    specs = _json(outputs.json_, f"{where}.json", config, whitespace)
    if outputs.json_object:
        specs.append(GrammarSpec("json_schema", ANY_OBJECT, f"{where}.json_object", whitespace))
    specs += _regex(outputs.regex, f"{where}.regex", config)
    specs += _choice(outputs.choice, f"{where}.choice", config)
    specs += _structural_tag(outputs.structural_tag, f"{where}.structural_tag", config)
    return specs + _grammar(outputs.grammar, f"{where}.grammar", config)


def _json(schema: object, param: str, config: ApiConfig, whitespace: str | None = None) -> list[GrammarSpec]:
    if schema is None:
        return []
    return [GrammarSpec("json_schema", schema_text(_parsed(schema, param, config), param, config), param, whitespace)]


def _structural_tag(tag: object, param: str, config: ApiConfig) -> list[GrammarSpec]:
    """The whole tag is held to the limits of a schema, so nothing in it is larger or deeper."""
    if tag is None:
        return []
    checked = orjson.loads(schema_text(_parsed(tag, param, config), param, config))
    try:
        if not isinstance(checked, dict):
            raise ValueError("the tag must be an object")
        source = tag_grammar(checked, config.max_stops)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}.", param=param) from error
    return [GrammarSpec("lark", source, param)]


def _parsed(value: object, param: str, config: ApiConfig) -> object:
    """vLLM also takes a schema or a structural tag as a JSON string."""
    if not isinstance(value, str):
        return value
    if len(value.encode()) > config.max_schema_bytes:
        raise InvalidRequest(f"{param} may have at most {config.max_schema_bytes} bytes.", param=param)
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{param} is not JSON: {error}.", param=param) from error


def _regex(pattern: str | None, param: str, config: ApiConfig) -> list[GrammarSpec]:
    if pattern is None:
        return []
    check_regex_size(pattern, param, config)
    return [GrammarSpec("regex", pattern, param)]


def _choice(choices: Sequence[str] | None, param: str, config: ApiConfig) -> list[GrammarSpec]:
    if choices is None:
        return []
    if not choices or not all(choices):
        raise InvalidRequest(f"{param} must hold at least one string, and no empty one.", param=param)
    if len(choices) > config.max_enum_values:
        raise InvalidRequest(
            f"{param} may hold at most {config.max_enum_values} strings, got {len(choices)}.", param=param
        )
    return [GrammarSpec("choice", schema_text(list(choices), param, config), param)]


def _grammar(text: str | None, param: str, config: ApiConfig) -> list[GrammarSpec]:
    if text is None:
        return []
    check_grammar(text, param, config)
    return [GrammarSpec("grammar", text, param)]
