"""A structural tag as a grammar (Lark, as llguidance reads it): text, and in it tags that contain JSON.

The format is XGrammar's, as vLLM takes it: `{"format": ...}`, or the older `{"structures": ..., "triggers": ...}`. Free
text ends at its first trigger, and a trigger is followed by the rest of a tag that begins with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from service.text.tool_grammar import with_options

_KEYS = {
    "const_string": {"value"},
    "json_schema": {"json_schema"},
    "any_text": set[str](),
    "sequence": {"elements"},
    "or": {"elements"},
    "tag": {"begin", "content", "end"},
    "tags_with_separator": {"tags", "separator", "at_least_one", "stop_after_first"},
    "triggered_tags": {"triggers", "tags", "at_least_one", "stop_after_first"},
}
"""Type of a format -> its keys."""
_NEUTRAL = {"style": "json", "excludes": []}
"""Keys that have no effect at these values."""
_ANY_TEXT = r"/(.|\n)*/"

Object = Mapping[str, Any]


def tag_grammar(tag: Object, most_triggers: int) -> str:
    """Raises ValueError that names the place in the tag and the reason if the tag is malformed or not supported."""
    rules = _Rules(most_triggers)
    if tag.get("type", "structural_tag") != "structural_tag":
        raise ValueError("type must be structural_tag")
    if "format" in tag:
        _check_keys(tag, {"type", "format"}, "the tag")
        start = rules.of(tag["format"], "format", is_last=True)
    else:
        _check_keys(tag, {"type", "structures", "triggers"}, "the tag")
        start = rules.of(_as_triggered(tag), "the tag", is_last=True)
    return "\n".join([f"start: {start}", *rules.lines]) + "\n"


def _as_triggered(tag: Object) -> Object:
    tags = []
    for index, structure in enumerate(_list(tag, "structures", "the tag")):
        where = f"structures[{index}]"
        _check_keys(_object(structure, where), {"begin", "schema", "end"}, where)
        content = {"type": "json_schema", "json_schema": _schema(structure.get("schema"), f"{where}.schema")}
        tags.append({name: _text(structure, name, where) for name in ("begin", "end")} | {"content": content})
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Rules:
    """The lines of the grammar, one or more for each part of the tag. Each method returns the name by which other rules
    refer to its part."""

    def __init__(self, most_triggers: int) -> None:
        self.lines: list[str] = []
        self._most_triggers = most_triggers

    def of(self, part: object, where: str, *, is_last: bool) -> str:
        """is_last: nothing follows, so that text without an end is allowed."""
        part = _object(part, where)
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _KEYS:
            raise ValueError(f"{where}.type must be one of {', '.join(_KEYS)}")
        _check_keys(part, {"type", *_KEYS[kind]}, where)
        match kind:
            case "const_string":
                return json.dumps(_text(part, "value", where))
            case "json_schema":
                return self._json(part.get("json_schema"), f"{where}.json_schema")
            case "any_text":
                _check_last(is_last, where)
                return self._rule(_ANY_TEXT)
            case "sequence":
                return self._sequence(_list(part, "elements", where), f"{where}.elements", is_last=is_last)
            case "or":
                elements = enumerate(_list(part, "elements", where))
                each = [self.of(element, f"{where}.elements[{index}]", is_last=is_last) for index, element in elements]
                return self._rule(" | ".join(each))
            case "tag":
                begin, rest = self._tag(part, where, is_last=is_last)
                return self._rule(f"{json.dumps(begin)} {rest}")
            case "tags_with_separator":
                return self._separated(part, where)
            case _:
                return self._triggered(part, where, is_last=is_last)

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {body}")
        return name

    def _json(self, schema: object, where: str) -> str:
        return self._rule(f"%json {with_options(_schema(schema, where), is_strict=True)}")

    def _sequence(self, elements: Sequence[object], where: str, *, is_last: bool) -> str:
        last = len(elements) - 1
        each = [
            self.of(element, f"{where}[{index}]", is_last=is_last and index == last)
            for index, element in enumerate(elements)
        ]
        return self._rule(" ".join(each))

    def _tag(self, part: object, where: str, *, is_last: bool) -> tuple[str, str]:
        """The text that the tag begins with, and the rule of all that follows."""
        part = _object(part, where)
        _check_keys(part, {"type", *_KEYS["tag"]}, where)
        if part.get("type", "tag") != "tag":
            raise ValueError(f"{where}.type must be tag")
        begin, end = _text(part, "begin", where), _text(part, "end", where)
        content = _object(part.get("content"), f"{where}.content")
        if content.get("type") == "any_text" and end:
            _check_keys(content, {"type"}, f"{where}.content")
            return begin, self._up_to(end)
        inside = self.of(content, f"{where}.content", is_last=is_last and not end)
        return begin, self._rule(f"{inside} {json.dumps(end)}")

    def _up_to(self, end: str) -> str:
        return self._rule(f"{_ANY_TEXT} {json.dumps(end)}", "[lazy]")

    def _tags(self, part: Object, where: str) -> list[tuple[str, str]]:
        return [
            self._tag(tag, f"{where}.tags[{index}]", is_last=False)
            for index, tag in enumerate(_list(part, "tags", where))
        ]

    def _any_of(self, tags: Sequence[tuple[str, str]]) -> str:
        return self._rule(" | ".join(f"{json.dumps(begin)} {rest}" for begin, rest in tags))

    def _separated(self, part: Object, where: str) -> str:
        one = self._any_of(self._tags(part, where))
        separator = json.dumps(_text(part, "separator", where))
        several = one if _flag(part, "stop_after_first", where) else f"{one} ({separator} {one})*"
        return self._rule(several if _flag(part, "at_least_one", where) else f"({several})?")

    def _triggered(self, part: Object, where: str, *, is_last: bool) -> str:
        """With at_least_one the text begins with a tag, as in XGrammar."""
        triggers = _list(part, "triggers", where)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ValueError(f"{where}.triggers must hold texts that are not empty")
        if len(triggers) > self._most_triggers:
            raise ValueError(f"{where}.triggers may hold at most {self._most_triggers} texts")
        tags = self._tags(part, where)
        by_trigger: dict[str, list[tuple[str, str]]] = {trigger: [] for trigger in triggers}
        for begin, rest in tags:
            beginnings = [trigger for trigger in by_trigger if begin.startswith(trigger)]
            if len(beginnings) != 1:
                raise ValueError(f"{where}: {json.dumps(begin[:64])} must begin with one of the triggers, and only one")
            by_trigger[beginnings[0]].append((begin[len(beginnings[0]) :], rest))
        if unused := [trigger for trigger, rests in by_trigger.items() if not rests]:
            raise ValueError(f"{where}.triggers: no tag begins with {json.dumps(unused[0][:64])}")
        first = self._any_of(tags) if _flag(part, "at_least_one", where) else None
        stops = _flag(part, "stop_after_first", where)
        if first is not None and stops:
            return first
        _check_last(is_last, where)
        blocks = [f"{self._up_to(trigger)} {self._any_of(rests)}" for trigger, rests in by_trigger.items()]
        block, text = self._rule(" | ".join(blocks)), self._rule(_ANY_TEXT)
        if stops:
            return self._rule(f"{block} | {text}")
        return self._rule(f"{first or ''} {block}* {text}")


def _check_keys(part: Object, known: set[str], where: str) -> None:
    for key, value in part.items():
        if key not in known and value is not None and value is not False and _NEUTRAL.get(key) != value:
            raise ValueError(f"{where}: {key[:64]} is not supported")


def _check_last(is_last: bool, where: str) -> None:
    if not is_last:
        raise ValueError(f"{where}: text that nothing ends may stand only at the end, or in a tag that has one")


def _object(value: object, where: str) -> Object:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    return value


def _schema(value: object, where: str) -> Object:
    """A schema may be `true`, which is any JSON."""
    return {} if value is True else _object(value, where)


def _list(part: Object, key: str, where: str) -> list[Any]:
    value = part.get(key)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}.{key} must be a list that is not empty")
    return value


def _text(part: Object, key: str, where: str) -> str:
    value = part.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{where}.{key} must be a text")
    return value


def _flag(part: Object, key: str, where: str) -> bool:
    value = part.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{where}.{key} must be true or false")
    return bool(value)
