"""Worst inputs of service/text: what a model writes, a token or a character at a time, and what a client says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from loadtest.quickstart.chat_format import CHAT_TEMPLATE
from service.text.call_arguments import arguments_object
from service.text.chat_output import ChatOutput
from service.text.chat_prompt import encode_chat
from service.text.chat_template import ChatTemplate
from service.text.detokenizer import make_detokenizer
from service.text.infill import infill_of
from service.text.long_text import MOST_UNDIVIDED
from service.text.marker import Marker
from service.text.reasoning import ReasoningSplitter
from service.text.special_text import LiteralEncoder, Shield, SpecialTexts
from service.text.stop_strings import StopMatcher
from service.text.string_argument import StringArgument
from service.text.taught_tools import with_tools_as_text
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import ToolStyle, make_router
from tests.complexity.growth import Work, WorstInput
from tests.text import tiny_tokenizers

MOST_TOKENS = 131_072
"""Of an output, at most: the longest context that is usual."""
_BODY = 8 * 1024 * 1024
_BYTE_LEVEL = Tokenizer(tiny_tokenizers.byte_level())
_BYTE_FALLBACK = Tokenizer(tiny_tokenizers.byte_fallback())
_ONE_SPACE = _BYTE_FALLBACK.id_of("▁")
assert _ONE_SPACE is not None

_OUTPUTS: dict[str, tuple[ToolStyle, Callable[[int], str]]] = {
    "hermes: blank text": (ToolStyle.HERMES, lambda n: "x" + " " * n),
    "hermes: blank before the object": (ToolStyle.HERMES, lambda n: "<tool_call>" + " " * n),
    "hermes: long arguments": (ToolStyle.HERMES, lambda n: '<tool_call>{"name":"f","arguments":{"a":"' + "x" * n),
    "hermes: arguments before the name": (ToolStyle.HERMES, lambda n: '<tool_call>{"arguments":{"a":"' + "x" * n),
    "hermes: arguments as a string": (
        ToolStyle.HERMES,
        lambda n: '<tool_call>{"name":"f","arguments":"' + "x" * n + '"}',
    ),
    "hermes: long key": (ToolStyle.HERMES, lambda n: '<tool_call>{"' + "x" * n),
    "hermes: many keys": (ToolStyle.HERMES, lambda n: "<tool_call>{" + '"a":1,' * (n // 6)),
    "hermes: deep arguments": (ToolStyle.HERMES, lambda n: '<tool_call>{"name":"f","arguments":' + "[" * n),
    "hermes: calls that are none": (ToolStyle.HERMES, lambda n: "<tool_call>x" * (n // 12)),
    "hermes: many calls": (ToolStyle.HERMES, lambda n: '<tool_call>{"name":"f"}</tool_call>' * (n // 35)),
    "llama: blank head": (ToolStyle.LLAMA3_JSON, lambda n: " " * n),
    "llama: blank behind the marker": (ToolStyle.LLAMA3_JSON, lambda n: "<|python_tag|>" + " " * n),
    "mistral: nothing between calls": (ToolStyle.MISTRAL, lambda n: '[{"name":"f"}' + "]," * (n // 2)),
    "pythonic: blank before the name": (ToolStyle.PYTHONIC, lambda n: "[" + " " * n),
    "pythonic: long argument": (ToolStyle.PYTHONIC, lambda n: "[f(a='" + "x" * n + "')"),
    "pythonic: many arguments": (ToolStyle.PYTHONIC, lambda n: "[f(" + "a=1," * (n // 4)),
    "pythonic: argument of many values": (ToolStyle.PYTHONIC, lambda n: "[f(a=[" + "1," * (n // 2) + "])"),
    "pythonic: argument of many texts": (ToolStyle.PYTHONIC, lambda n: "[f(a=" + "'x' " * (n // 4) + ")"),
    "pythonic: argument of a long number": (ToolStyle.PYTHONIC, lambda n: "[f(a=" + "1" * n + ")"),
    "pythonic: argument of a sum": (ToolStyle.PYTHONIC, lambda n: "[f(a=1" + "+1" * (n // 2) + ")"),
}
_COPYING = {"hermes: arguments before the name", "hermes: long key", "pythonic: long argument"}
"""A text that is copied for each character that it grows by: quadratic, but of moving bytes, so it shows late."""
_MODULES_OF_STYLE = {
    ToolStyle.HERMES: ("text/tool_calls.py", "text/chat_output.py"),
    ToolStyle.LLAMA3_JSON: ("text/tool_calls.py",),
    ToolStyle.MISTRAL: ("text/json_call.py", "text/partial_call.py"),
    ToolStyle.PYTHONIC: ("text/tool_calls.py", "text/pythonic_call.py", "text/partial_call.py"),
}


class _Reader(Protocol):
    def push(self, piece: str, /) -> object: ...

    def flush(self) -> object: ...


def _read(reader: _Reader, pieces: Iterable[str]) -> None:
    for piece in pieces:
        reader.push(piece)
    reader.flush()


def _tool_output(style: ToolStyle, text_of: Callable[[int], str], n: int) -> Work:
    text = text_of(n)
    return lambda: _read(ChatOutput(None, make_router(style, {"f"})), text)


def _thoughts(text: str, *, starts_inside: bool) -> Work:
    return lambda: _read(ChatOutput(ReasoningSplitter(starts_inside=starts_inside), None), text)


def _marked(text: str) -> Work:
    return lambda: _read(Marker("</think>"), text)


def _stopped(stops: list[str], text: str, *, shown: bool = False) -> Work:
    return lambda: _read(StopMatcher(stops, include_stop=shown), text)


def _detokenized(tokenizer: Tokenizer, token_id: int, n: int, *, special: bool = False) -> Work:
    def work() -> None:
        detokenizer = make_detokenizer(tokenizer, skip_special_tokens=not special)
        for _ in range(n):
            detokenizer.push((token_id,))
        detokenizer.flush()

    return work


def _filled(n: int) -> Work:
    infill = infill_of(Tokenizer(tiny_tokenizers.with_added("qwen2.5")))
    assert infill is not None
    text = "<|fim_suffix|>" * n
    return lambda: infill.encode(text, text, add_special_tokens=True, check=lambda num_tokens: None)


def _covered(num_special: int, n: int) -> Work:
    """Text that is nearly special everywhere, for a model with many special tokens that begin alike."""
    special = SpecialTexts(f"[control_{index}]" for index in range(num_special))
    text = "[control_" * (n // 9)
    return lambda: Shield(special).cover(text)


def _covered_strings(n: int) -> Work:
    special = SpecialTexts([f"<|reserved_special_token_{index}|>" for index in range(248)])
    texts = ["<|reserved_special_token_"] * n
    return lambda: Shield(special).cover(texts)


def _revealed(n: int) -> Work:
    shield = Shield(SpecialTexts([tiny_tokenizers.START]))
    covered = str(shield.cover(tiny_tokenizers.START * n))
    return lambda: shield.reveal(covered)


def _literals(n: int) -> Work:
    encoder, shield = LiteralEncoder(tiny_tokenizers.byte_level()), Shield(_BYTE_LEVEL.special_texts)
    covered = str(shield.cover(tiny_tokenizers.START * n))
    return lambda: encoder.encode(covered, shield.literals)


def _encoded(tokenizer: Tokenizer, text: str) -> Work:
    return lambda: tokenizer.encode(text, add_special_tokens=True)


def _rendered(source: str, messages: list[dict[str, object]], **options: object) -> Work:
    template = ChatTemplate(source, {})
    return lambda: template.render(messages, add_generation_prompt=True, options=options)


def _said(n: int, text: str = "x") -> list[dict[str, object]]:
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index in range(n)]


def _chat(n: int) -> Work:
    template, messages = ChatTemplate(tiny_tokenizers.CHAT_TEMPLATE, {}), _said(n, tiny_tokenizers.END)
    return lambda: encode_chat(_BYTE_LEVEL, template, messages)


def _told_of_tools(n: int) -> Work:
    function = {"name": "f", "arguments": {"a": "x"}}
    called = {"role": "assistant", "content": "so", "tool_calls": [{"function": function}]}
    messages = [{"role": "system", "content": "s"}, *[called, {"role": "tool", "content": "7"}] * (n // 2)]
    return lambda: with_tools_as_text(messages, [{"function": function}] * n)


def _cut_arguments(piece: str, n: int) -> Work:
    text = ('{"x":"' if piece.startswith("\\") else "{") + piece * n
    return lambda: arguments_object(text, keeps_cut_text=True)


def _one_argument(text: str) -> Work:
    """A character at a time, and all at once."""

    def work() -> None:
        whole, slow = StringArgument(), StringArgument()
        whole.push(text)
        for char in text:
            slow.push(char)

    return work


TEXT_INPUTS = [
    WorstInput(
        "a text with a hole: all marks", ("text/infill.py", "text/any_of.py"), _filled, 500, _BODY // 12, "pool"
    ),
    *(
        WorstInput(
            name,
            _MODULES_OF_STYLE[style],
            partial(_tool_output, style, text),
            50_000 if name in _COPYING else 12_000,
            4 * MOST_TOKENS,
            "stream",
        )
        for name, (style, text) in _OUTPUTS.items()
    ),
    WorstInput(
        "reasoning: blank text that may begin it",
        ("text/reasoning.py", "text/chat_output.py"),
        lambda n: _thoughts(" " * n, starts_inside=False),
        16_000,
        4 * MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "reasoning: blank thoughts",
        ("text/reasoning.py", "text/held_blank.py"),
        lambda n: _thoughts("x" + " " * n, starts_inside=True),
        16_000,
        4 * MOST_TOKENS,
        "stream",
    ),
    *(
        WorstInput(
            f"arguments of a call that were cut: {name}",
            ("text/call_arguments.py",),
            partial(_cut_arguments, piece),
            20_000,
            _BODY // len(piece),
            "pool",
        )
        for name, piece in {"keys": '"x":1,', "escapes": "\\ud83d", "objects in objects": '{"x":'}.items()
    ),
    WorstInput(
        "one string as arguments: escapes",
        ("text/string_argument.py",),
        lambda n: _one_argument('{"input":"' + "\\ud83d\\u0041" * (n // 12)),
        16_000,
        4 * MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "one string as arguments: blank before it",
        ("text/string_argument.py",),
        lambda n: _one_argument(" " * n),
        16_000,
        4 * MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "marker: nearly",
        ("text/marker.py",),
        lambda n: _marked("</think" * (n // 7)),
        16_000,
        4 * MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "stop strings: nearly, of the longest four",
        ("text/stop_strings.py",),
        lambda n: _stopped(["a" * 1023 + end for end in "bcde"], "a" * n),
        4_000,
        4 * MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "stop strings: long ones",
        ("text/stop_strings.py",),
        lambda n: _stopped(["ab" * n + end for end in "cdef"], "ab" * n),
        1_000,
        512,
        "stream",
    ),
    WorstInput(
        "detokenizer: bytes that are no text",
        ("text/byte_detokenizer.py", "text/detokenizer.py"),
        lambda n: _detokenized(_BYTE_LEVEL, _BYTE_LEVEL.encode("你", add_special_tokens=False)[0], n),
        4_000,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "detokenizer: first spaces, which have no text of their own",
        ("text/window_detokenizer.py", "text/tokenizer.py"),
        lambda n: _detokenized(_BYTE_FALLBACK, _ONE_SPACE, n),
        500,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "detokenizer: ids without a token",
        ("text/window_detokenizer.py",),
        lambda n: _detokenized(_BYTE_FALLBACK, 999_999, n, special=True),
        2_000,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "detokenizer: bytes of a fallback",
        ("text/window_detokenizer.py",),
        lambda n: _detokenized(_BYTE_FALLBACK, 3 + 0xE4, n),
        500,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "special text: nearly, everywhere; as many more special tokens",
        ("text/special_text.py", "text/any_of.py"),
        lambda n: _covered(n // 1_000, n),
        200_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "special text: a beginning at the end of many strings",
        ("text/special_text.py",),
        _covered_strings,
        2_000,
        16_384,
        "pool",
    ),
    WorstInput("special text: all of it, revealed", ("text/special_text.py",), _revealed, 4_000, _BODY // 12, "pool"),
    WorstInput("special text: all of it, encoded", ("text/special_text.py",), _literals, 2_000, _BODY // 12, "pool"),
    WorstInput(
        "tokenizer, byte-level: one long word",
        ("text/tokenizer.py", "text/long_text.py"),
        lambda n: _encoded(_BYTE_LEVEL, "a" * n),
        20_000,
        MOST_UNDIVIDED,
        "pool",
    ),
    WorstInput(
        "tokenizer, byte-level: words, in pieces",
        ("text/tokenizer.py", "text/long_text.py"),
        lambda n: _encoded(_BYTE_LEVEL, "a " * (n // 2)),
        150_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "tokenizer, byte-level: spaces",
        ("text/tokenizer.py",),
        lambda n: _encoded(_BYTE_LEVEL, " " * n + "a"),
        20_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "tokenizer, byte-level: added tokens",
        ("text/tokenizer.py",),
        lambda n: _encoded(_BYTE_LEVEL, "<think>" * (n // 7)),
        20_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "tokenizer, byte fallback: one long word of merges",
        ("text/tokenizer.py",),
        lambda n: _encoded(_BYTE_FALLBACK, "hello" * (n // 5)),
        20_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "tokenizer, byte fallback: characters that it does not know",
        ("text/tokenizer.py",),
        lambda n: _encoded(_BYTE_FALLBACK, "👩" * (n // 4)),
        20_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "template: many messages",
        ("text/chat_template.py", "text/template_sandbox.py"),
        lambda n: _rendered(tiny_tokenizers.TOOL_TEMPLATE, _said(n)),
        500,
        8_192,
        "pool",
    ),
    WorstInput(
        "template: the quickstart model's",
        ("text/chat_template.py",),
        lambda n: _rendered(CHAT_TEMPLATE, _said(n)),
        500,
        8_192,
        "pool",
    ),
    WorstInput(
        "chat prompt: every message looks special",
        ("text/chat_prompt.py", "text/chat_template.py"),
        _chat,
        500,
        8_192,
        "pool",
    ),
    WorstInput(
        "chat template without tools: many calls and results, and many tools",
        ("text/taught_tools.py",),
        _told_of_tools,
        500,
        8_192,
        "pool",
    ),
]
