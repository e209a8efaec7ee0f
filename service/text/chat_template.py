"""Messages -> the prompt text that a chat model was trained on, by the model's own Jinja template.

The environment is the one that transformers renders with, so that both give the same text: sandboxed,
immutable, `trim_blocks` and `lstrip_blocks`, loop controls, and the helpers that published templates use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from service.errors import HeadraceError, ModelLoadError
from service.text import reasoning
from service.text.tool_calls import ToolStyle, style_of_template

_MAX_PRODUCT = 10_000_000
_MAX_EXPONENT = 64

Message = Mapping[str, object]


class TemplateRefusal(HeadraceError):
    """The template cannot render these messages; the text of the error is the template's."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """For one rendering; looked at each time that the template writes something."""

    max_s: float = 5.0
    max_characters: int = 32 * 1024 * 1024


class ChatTemplate:
    """One compiled template. `render` may be called from several threads at once.

    special_tokens: names as templates use them (`bos_token`, `eos_token`, ...) -> their text.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], limits: RenderLimits | None = None) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._limits = limits or RenderLimits()
        environment = _Environment()
        try:
            self._template = environment.from_string(source)
            self._variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"chat template, line {error.lineno}: {error.message}") from error

    def knows_role(self, role: str) -> bool:
        """Whether the template speaks of this role by name."""
        return f"'{role}'" in self._source or f'"{role}"' in self._source

    @property
    def knows_tools(self) -> bool:
        return "tools" in self._variables

    @property
    def tool_style(self) -> ToolStyle | None:
        """How the template teaches its model to call tools; None if it does not, or in no known style."""
        return style_of_template(self._source) if self.knows_tools else None

    @property
    def knows_reasoning(self) -> bool:
        """Whether its model writes its reasoning between marks."""
        return reasoning.CLOSE in self._source or reasoning.OPEN in self._source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[object] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text. TemplateRefusal when the template objects, cannot cope, or takes too long or too much.

        options: further variables, as the model's makers offer them.
        """
        variables = {
            **(options or {}),
            **self._special_tokens,
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._within_limits(self._template.generate(variables))
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateRefusal(str(error)) from error

    def _within_limits(self, pieces: Iterator[str]) -> str:
        written: list[str] = []
        num_characters, deadline_s = 0, time.monotonic() + self._limits.max_s
        for piece in pieces:
            written.append(piece)
            num_characters += len(piece)
            if num_characters > self._limits.max_characters:
                raise TemplateRefusal("the prompt becomes too long")
            if time.monotonic() > deadline_s:
                raise TemplateRefusal("rendering takes too long")
        return "".join(written)


def load_chat_template(folder: Path, file: Path | None = None) -> ChatTemplate | None:
    """The template of a model folder, or of `file` if one is given; None if the model has none.

    Looks at chat_template.jinja, then at `chat_template` in tokenizer_config.json (a string, or named
    templates of which `default` is taken).
    """
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json"), tokenizer_config)
    if file is not None:
        if not file.is_file():
            raise ModelLoadError(f"chat-template: {file} is not a file")
        return ChatTemplate(_read_text(file), special_tokens)
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return ChatTemplate(_read_text(beside), special_tokens)
    source = _source_in(tokenizer_config.get("chat_template"))
    return None if source is None else ChatTemplate(source, special_tokens)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"chat template {file} cannot be read: {error}") from error


def _source_in(entry: object) -> str | None:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        default = named.get("default")
        return default if isinstance(default, str) else None
    return None


def _special_tokens(*sources: Mapping[str, object]) -> dict[str, str]:
    """The entries called `..._token`; later sources win. A token is a string, or an object with `content`."""
    texts = {}
    for name, value in (entry for source in sources for entry in source.items()):
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def _read_json(file: Path) -> dict[str, object]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} is not a JSON object")
    return value


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscore names, which lead to the interpreter's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Jinja's own signature: it lets a template write namespace(self=...).
        self, *positional = args
        values = dict(*positional, **kwargs)
        for name in values:
            _check_namespace_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: object) -> None:
        _check_namespace_name(name)
        super().__setitem__(name, value)


def _check_namespace_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which two small operands cannot make something huge."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [abs(value) if isinstance(value, int | float) else len(value) for value in (left, right)]
        if sizes[0] * sizes[1] > _MAX_PRODUCT or (operator == "**" and sizes[1] > _MAX_EXPONENT):
            raise jinja2.exceptions.SecurityError(f"the result of {operator} would be too big")
        return super().call_binop(context, operator, left, right)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escaping of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
