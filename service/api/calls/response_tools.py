"""The `tools` of a response -> the functions of a chat, and the names under which their calls are shown.

There are three kinds of tools. Functions, alone or in a namespace, are functions. A custom tool takes free text: to the
model it is a function whose one argument is that text. All others would be run by OpenAI's servers, or need a model
that was trained on them. Of these, the ones that agents attach to every request, needed or not, are left out and named
in `x-ignored-params`; the rest is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.api.calls.unsupported import extra_fields
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.responses import InputFormat, ResponseTool
from service.text.string_argument import ARGUMENT

_LEFT_OUT = ("web_search", "image_generation", "tool_search")
"""Also with their dated and preview names, which begin alike."""
_HINTS = frozenset({"defer_loading", "allowed_callers", "output_schema", "async"})
"""Fields of tools that change nothing for a model that sees all tools and calls them directly."""


@dataclass(frozen=True, slots=True)
class CalledAs:
    """How the calls of one function are shown to the client. place: of the tool in the request."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None
    place: str


@dataclass(slots=True)
class ResponseTools:
    """functions: a chat's `tools`, as JSON. called_as: by the names that the model knows. echoed: the tools in force,
    unchanged. ignored: names of what was left out."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    called_as: dict[str, CalledAs] = field(default_factory=dict)
    echoed: list[dict[str, Any]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    @property
    def places(self) -> list[str]:
        """Of each function, its path in the request."""
        return [each.place for each in self.called_as.values()]


def joined_name(name: str, namespace: str | None) -> str:
    """The name by which the model knows a function of a namespace."""
    return name if namespace is None else f"{namespace}__{name}"


def read_tools(tools: Sequence[ResponseTool]) -> ResponseTools:
    """Refuses what is not supported; the functions themselves are checked as a chat's."""
    read = ResponseTools()
    for index, tool in enumerate(tools):
        if tool.type.startswith(_LEFT_OUT):
            read.ignored.append(f"tools.{tool.type}")
            continue
        read.echoed.append(tool.model_dump(exclude_unset=True, by_alias=True))
        for place, each, namespace in _members(tool, f"tools[{index}]"):
            read.ignored += [name for name in extra_fields("tools", each) if name.partition(".")[2] not in _HINTS]
            function = _function(each, place, namespace, read.ignored)
            name = str(function["name"])
            if name in read.called_as:
                raise InvalidRequest("tools: two tools have the same name.", param="tools")
            kind: Literal["function", "custom"] = "custom" if each.type == "custom" else "function"
            read.called_as[name] = CalledAs(kind, each.name or "", namespace, place)
            read.functions.append({"type": "function", "function": function})
    return read


def chat_choice(choice: str | dict[str, Any] | None, tools: ResponseTools) -> str | dict[str, Any] | None:
    """A chat's `tool_choice`. A choice that names no function is left to the chat's check."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("tools")
        named = [_named(each, tools) for each in allowed if _is_there(each)] if isinstance(allowed, list) else []
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    return _named(choice, tools)


def custom_arguments(text: str) -> dict[str, str]:
    """The arguments of a custom tool's call, as the model sees them."""
    return {ARGUMENT: text}


def _members(tool: ResponseTool, place: str) -> Iterator[tuple[str, ResponseTool, str | None]]:
    """The tool, or the tools of its namespace, each with its path."""
    if tool.type != "namespace":
        yield place, tool, None
        return
    for index, each in enumerate(tool.tools or ()):
        yield f"{place}.tools[{index}]", each, _named_at(tool, place)


def _function(tool: ResponseTool, place: str, namespace: str | None, ignored: list[str]) -> dict[str, object]:
    if tool.type not in ("function", "custom"):
        raise UnsupportedParameter(
            f"{place}.type: tools of type '{tool.type[:64]}' are not supported, only function and custom.",
            param=f"{place}.type",
        )
    function: dict[str, object] = {"name": joined_name(_named_at(tool, place), namespace)}
    if tool.type == "function":
        function |= {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    else:
        function |= _custom(tool, place, ignored)
    return {name: value for name, value in function.items() if value is not None}


def _named_at(tool: ResponseTool, place: str) -> str:
    if not tool.name:
        raise InvalidRequest(f"{place}.name is required.", param=f"{place}.name")
    return tool.name


def _custom(tool: ResponseTool, place: str, ignored: list[str]) -> dict[str, object]:
    """A regex constrains the text. A Lark grammar is only shown to the model: the text is in a JSON string, whose
    escapes the grammar does not know."""
    value: dict[str, object] = {"type": "string"}
    description = tool.description or ""
    format_ = tool.format or InputFormat(type="text")
    if format_.type == "grammar":
        if not format_.syntax or not format_.definition:
            param = f"{place}.format.definition"
            raise InvalidRequest(f"{param} and its syntax are required.", param=param)
        if format_.syntax == "regex":
            value["pattern"] = f"^(?:{format_.definition})$"
        else:
            ignored.append("tools.format")
            description += f"\n\nThe input must match this Lark grammar:\n{format_.definition}"
    return {
        "description": description.strip() or None,
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: value},
            "required": [ARGUMENT],
            "additionalProperties": False,
        },
        "strict": "pattern" in value,
    }


def _is_there(tool: object) -> bool:
    """Whether the tool was not left out."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return not (isinstance(kind, str) and kind.startswith(_LEFT_OUT))


def _named(choice: object, tools: ResponseTools) -> dict[str, Any]:
    match choice:
        case {"type": "function" | "custom", "name": str(name), **rest}:
            return {"type": "function", "function": {"name": _known_as(name, rest.get("namespace"), tools)}}
        case {"type": str(kind)} if kind not in ("function", "custom"):
            raise UnsupportedParameter(
                f"tool_choice: tools of type '{kind[:64]}' are not supported.", param="tool_choice"
            )
    return {}


def _known_as(name: str, namespace: object, tools: ResponseTools) -> str:
    """The model's name of a function that the client names, perhaps without its namespace."""
    for known, each in tools.called_as.items():
        if each.name == name and (namespace is None or each.namespace == namespace):
            return known
    return name
