"""One session at the terminal: commands and messages in, answers out."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from service.chat_client.batch_input import EXAMPLE, BatchInputError, BatchItem, parse_batch
from service.chat_client.batches import Batches, answer_or_fault
from service.chat_client.conversation import Conversation, ConversationError
from service.chat_client.request_fields import FieldError, RequestFields
from service.chat_client.server import Ignored, Server, ServerFault, StreamEvent, Usage
from service.chat_client.server_batch import ServerBatch
from service.chat_client.terminal import GOES_ON, Piece, Terminal

CHAT_PRIORITY = 1
_QUOTES = '"""'
_CONTROL_CHARACTERS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Removed from answers, since they could control the user's terminal."""


class _Command(NamedTuple):
    """carry_out: called with the text after the command's name."""

    usage: str
    help: str
    carry_out: Callable[[Session, str], None]


class Session:
    """fields: the initial fields of every request.

    A chat call goes before the batches: batches on the server wait while there are chats. If the server does not
    support batches, their calls have a lower priority, if its scheduling policy uses priorities.
    """

    def __init__(self, server: Server, terminal: Terminal, model: str, fields: Mapping[str, Any]) -> None:
        self._server = server
        self._terminal = terminal
        self._model = model
        self._fields = RequestFields(fields)
        self._conversation = Conversation()
        self._priority: dict[str, int] = {"priority": CHAT_PRIORITY}
        self._batches = Batches(self._begin_batch, self._answer_item)
        self._num_failed = 0

    def run(self) -> int:
        """Runs until the user leaves; returns how many answers have failed."""
        try:
            while (line := self._next_line()) not in (None, "/quit"):
                try:
                    self._carry_out(line or "")
                except KeyboardInterrupt:
                    self._terminal.note("[stopped]")
        finally:
            if self._batches.num_running:
                self._terminal.note("waiting for the calls that have begun ...")
            self._batches.close()
        return self._num_failed

    def _next_line(self) -> str | None:
        for name in self._batches.newly_done():
            self._terminal.note(f"[batch {name} is done: /answers]")
        try:
            line = self._terminal.read().strip()
            return self._quoted(line) if line.startswith(_QUOTES) else line
        except EOFError:
            return None
        except KeyboardInterrupt:
            self._terminal.note("[/quit or Ctrl-D leaves]")
            return ""

    def _quoted(self, text: str) -> str:
        """All lines up to the closing quotes, or to the end; none of them is a command."""
        while len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES):
            try:
                text = f"{text}\n{self._terminal.read(GOES_ON)}"
            except EOFError:
                break
        return f" {text.removeprefix(_QUOTES).removesuffix(_QUOTES).strip()}"

    def _carry_out(self, line: str) -> None:
        if not line.startswith("/"):
            if line.strip():
                self._chat(line.strip())
            return
        name, _, rest = line.partition(" ")
        if name not in COMMANDS:
            self._terminal.note(f"there is no command {name}; /help names them all")
            return
        try:
            COMMANDS[name].carry_out(self, rest.strip())
        except ServerFault as fault:
            self._terminal.fault(str(fault))
        except (ConversationError, FieldError) as fault:
            self._terminal.note(str(fault))

    def _chat(self, text: str) -> None:
        """The turn is kept if it is answered; an answer that was stopped is kept as far as it came."""
        self._conversation.say(text)
        if not self._answered():
            self._conversation.take_back_question()

    def _answered(self) -> bool:
        """Answers the last message; False if that failed, or was stopped before anything came."""
        answer = _Answer()
        try:
            self._receive(answer)
        except KeyboardInterrupt:
            answer.notes.append("[stopped]")
        except ServerFault as fault:
            self._num_failed += 1
            self._terminal.fault(self._explained(fault))
            return False
        if self._terminal.is_interactive and answer.usage is not None:
            answer.notes.append(answer.speed(answer.usage))
        for line in answer.notes:
            self._terminal.note(line)
        if answer.text or answer.usage is not None:
            self._conversation.answer(answer.text)
            return True
        return False

    def _receive(self, answer: _Answer) -> None:
        with self._terminal.answer() as show, closing(self._stream()) as stream:
            for event in stream:
                if isinstance(event, Usage):
                    answer.usage = event
                elif isinstance(event, Ignored):
                    answer.notes.append(f"[the server ignored fields that it does not know: {event.names}]")
                else:
                    show(event._replace(text=self._shown(event.text)))
                    answer.add(event)

    def _shown(self, text: str) -> str:
        return text.translate(_CONTROL_CHARACTERS) if self._terminal.is_interactive else text

    def _explained(self, fault: ServerFault) -> str:
        if fault.param in self._fields.all():
            return f"{fault} (/set {fault.param} leaves it to the server)"
        return str(fault)

    def _stream(self) -> Generator[StreamEvent, None, None]:
        """Sends a priority; if the server refuses it, sends the request again without, and never again with."""
        request = self._request(self._conversation.messages(), self._fields.all())
        try:
            yield from self._server.stream_chat({**self._priority, **request})
        except ServerFault as fault:
            if fault.param != "priority" or not self._priority or "priority" in request:
                raise
            self._priority = {}
            yield from self._server.stream_chat(request)

    def _set_system(self, text: str) -> None:
        """`-` removes it."""
        if text:
            self._conversation.system = "" if text == "-" else text
        system = self._conversation.system
        self._terminal.note(f"system: {system}" if system else "there is no system message")

    def _set_field(self, text: str) -> None:
        if text:
            self._terminal.note(self._fields.change(text))
            return
        names = sorted(self._fields.all())
        self._terminal.note("\n".join(map(self._fields.describe, names)) or "everything is left to the server")

    def _set_model(self, name: str) -> None:
        names = self._server.model_names()
        if name and name not in names:
            self._terminal.note(f"there is no model {name}; there are: {', '.join(names)}")
            return
        self._model = name or self._model
        others = "" if name else f"; there are: {', '.join(names)}"
        self._terminal.note(f"the model is {self._model}{others}")

    def _save(self, name: str) -> None:
        if not name:
            raise ConversationError("/save needs a file name: /save FILE")
        path = self._conversation.save(name)
        self._terminal.note(f"saved {_number(self._conversation.messages())} to {path}")

    def _load(self, name: str) -> None:
        if not name:
            raise ConversationError("/load needs a file name: /load FILE")
        path = self._conversation.load(name)
        self._terminal.note(f"loaded {_number(self._conversation.messages())} from {path}; the next is yours")

    def _begin_anew(self, _: str) -> None:
        self._conversation.turns.clear()
        kept = "; the system message stays" if self._conversation.system else ""
        self._terminal.note(f"a new conversation{kept}")

    def _retry(self, _: str) -> None:
        turns = list(self._conversation.turns)
        if not self._conversation.take_back_answer():
            self._terminal.note("there is no answer to generate again")
        elif not self._answered():
            self._conversation.turns = turns

    def _start_batch(self, text: str) -> None:
        try:
            batch = self._batches.start(parse_batch(text))
        except BatchInputError as fault:
            self._terminal.note(f"{fault}\nfor example: /batch {EXAMPLE}")
            return
        self._terminal.note(f"[batch {batch.name}: {len(batch.items)} prompts are being answered]")

    def _show_answers(self, _: str) -> None:
        done = self._batches.take_done()
        for batch in done:
            for index, (item, answer) in enumerate(zip(batch.items, batch.answers, strict=True), 1):
                text = self._shown(answer_or_fault(answer))
                self._terminal.note(f"batch {batch.name}, {index}: {item.prompt}\n{text}\n")
        if not done:
            self._terminal.note(f"no batch is done; {self._batches.num_running} are being answered")

    def _help(self, _: str) -> None:
        self._terminal.note(HELP)

    def _begin_batch(self, items: Sequence[BatchItem]) -> ServerBatch:
        return ServerBatch(self._server, [self._request_of(item) for item in items])

    def _answer_item(self, item: BatchItem) -> str:
        return self._server.complete_chat(self._request_of(item))

    def _request_of(self, item: BatchItem) -> dict[str, Any]:
        return self._request([{"role": "user", "content": item.prompt}], {"max_tokens": item.max_tokens})

    def _request(self, messages: list[dict[str, str]], fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "model": self._model, "messages": messages}


class _Answer:
    """One answer as it comes. text: without its reasoning. usage: the server's counts, at the end. notes: further
    messages for the user."""

    def __init__(self) -> None:
        self.text = ""
        self.usage: Usage | None = None
        self.notes: list[str] = []
        self._began_s = self._first_s = self._last_s = time.monotonic()

    def add(self, piece: Piece) -> None:
        self._last_s = time.monotonic()
        if self._first_s == self._began_s:
            self._first_s = self._last_s
        if not piece.is_reasoning:
            self.text += piece.text

    def speed(self, usage: Usage) -> str:
        """The speed of the answer, as shown to the user."""
        num, seconds = usage.completion_tokens, self._last_s - self._first_s
        rate = f", then {(num - 1) / seconds:.1f} tokens/s" if num > 1 and seconds > 0 else ""
        return f"[{num} tokens: the first after {self._first_s - self._began_s:.2f} s{rate}]"


def _number(messages: list[dict[str, str]]) -> str:
    return f"{len(messages)} message{'' if len(messages) == 1 else 's'}"


COMMANDS = {
    "/system": _Command("/system TEXT", "set the system message; - removes it", Session._set_system),
    "/set": _Command("/set NAME VALUE", "set a request field; without VALUE: unset it", Session._set_field),
    "/model": _Command("/model NAME", "change the model; without NAME: list the models", Session._set_model),
    "/retry": _Command("/retry", "generate the last answer again", Session._retry),
    "/new": _Command("/new", "begin a new conversation", Session._begin_anew),
    "/save": _Command("/save FILE", "save the conversation as JSON", Session._save),
    "/load": _Command("/load FILE", "continue a saved conversation", Session._load),
    "/batch": _Command(f"/batch {EXAMPLE}", "answer prompts in the background", Session._start_batch),
    "/answers": _Command("/answers", "show the answers of the batches that are done", Session._show_answers),
    "/help": _Command("/help", "show this text", Session._help),
}  # fmt: skip

HELP = "\n".join(
    [
        "Type a message to chat. Ctrl-C stops an answer. Three quotation marks begin and end several lines.",
        *(f"  {each.usage:16} {each.help}" for each in COMMANDS.values()),
        f"  {'/quit':16} leave; so does Ctrl-D",
    ]
)
