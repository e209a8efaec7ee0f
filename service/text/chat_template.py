"""Messages -> the prompt text on which a chat model was trained, by the model's own Jinja template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import jinja2.meta
import jinja2.nodes

from service.errors import HeadraceError, ModelLoadError
from service.text import reasoning
from service.text.taught_tools import with_tools_as_text
from service.text.template_sandbox import TemplateSandbox, check_time, time_limit
from service.text.tokenizer_config import read_tokenizer_config
from service.text.tool_calls import ToolStyle, style_of_template

Message = Mapping[str, object]

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TemplateRefusal(HeadraceError):
    """The template cannot render these messages. The message of the error is the template's."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering, checked whenever the template writes something; the time also whenever it reads a
    field."""

    max_s: float = 5.0
    max_characters: int = 32 * 1024 * 1024


class ChatTemplate:
    """One compiled template. `render` may be called from several threads at once.

    special_tokens: names as templates use them (`bos_token`, `eos_token`, ...) -> their text. roles: those that the
    template compares with.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], limits: RenderLimits | None = None) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._limits = limits or RenderLimits()
        environment = TemplateSandbox()
        try:
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
            self.roles = _roles_compared(parsed)
            self._variables = jinja2.meta.find_undeclared_variables(parsed)  # it folds constants
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"chat template, line {error.lineno}: {error.message}") from error

    def knows_role(self, role: str) -> bool:
        """Whether the template treats this role specially."""
        return role in self.roles

    def takes(self, option: str) -> bool:
        """Whether the template uses a variable of this name that `render` does not set itself."""
        return option in self._variables and option not in _OWN_VARIABLES | self._special_tokens.keys()

    @property
    def source(self) -> str:
        return self._source

    @property
    def knows_documents(self) -> bool:
        return "documents" in self._variables

    @property
    def knows_tools(self) -> bool:
        """Whether it shows tools itself; if not, `render` writes them into the messages."""
        return "tools" in self._variables

    @property
    def tool_style(self) -> ToolStyle | None:
        """How its model is taught to call tools, by the template or instead of it (taught_tools.py); None if the style
        is unknown."""
        return style_of_template(self._source) if self.knows_tools else ToolStyle.HERMES

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
        documents: Sequence[object] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text. TemplateRefusal if the template raises, fails, or exceeds a limit.

        options: further variables that the model's makers document.
        """
        if tools and not self.knows_tools:
            messages = with_tools_as_text(messages, tools)
        variables = {
            **(options or {}),
            **self._special_tokens,
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._within_limits(self._template.generate(variables))
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateRefusal(str(error)) from error

    def _within_limits(self, pieces: Iterator[str]) -> str:
        written: list[str] = []
        num_characters = 0
        with time_limit(self._limits.max_s):
            for piece in pieces:
                written.append(piece)
                num_characters += len(piece)
                if num_characters > self._limits.max_characters:
                    raise TemplateRefusal("the prompt becomes too long")
                check_time()
        return "".join(written)


def load_chat_template(folder: Path, file: Path | None = None) -> ChatTemplate | None:
    """The template of a model folder, or of `file` if one is given; None if the model has none.

    Looks at chat_template.jinja, then at `chat_template` in tokenizer_config.json (a string, or named templates, of
    which `default` is taken).
    """
    config = read_tokenizer_config(folder)
    if file is not None:
        check_template_file(file)
        return ChatTemplate(_read_text(file), config.special_tokens)
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return ChatTemplate(_read_text(beside), config.special_tokens)
    source = _source_in(config.options.get("chat_template"))
    return None if source is None else ChatTemplate(source, config.special_tokens)


def check_template_file(file: Path) -> None:
    """Checks the setting `chat-template`. Raises ModelLoadError."""
    if not file.is_file():
        raise ModelLoadError(f"chat-template: {file} is not a file")


def _roles_compared(template: jinja2.nodes.Template) -> frozenset[str]:
    """The texts that a message's role is compared with, or looked up in."""
    roles: set[str] = set()
    for comparison in template.find_all(jinja2.nodes.Compare):
        sides = [comparison.expr, *(operand.expr for operand in comparison.ops)]
        if any(_is_role(side) for side in sides):
            for side in sides:
                members = side.items if isinstance(side, jinja2.nodes.List | jinja2.nodes.Tuple) else [side]
                constants = [each.value for each in members if isinstance(each, jinja2.nodes.Const)]
                roles |= {value for value in constants if isinstance(value, str)}
    return frozenset(roles)


def _is_role(expression: jinja2.nodes.Expr) -> bool:
    """`message.role`, `message["role"]`, or a variable of that name."""
    match expression:
        case jinja2.nodes.Getattr(attr="role") | jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value="role")):
            return True
        case jinja2.nodes.Name(name=name):
            return "role" in name
    return False


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
