"""One session at the terminal: what the user types, and what is written to it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from service.chat_client.batch_input import EXAMPLE, BatchInputError, BatchItem, parse_batch
from service.chat_client.batches import Batches, answer_or_fault
from service.chat_client.server import Server, ServerFault

HELP = f"""\
Type a message to chat. An answer is stopped by Ctrl-C. Besides:
  /batch {EXAMPLE}
            send prompts that are answered behind the chat: one number of tokens for each, or one for all
  /answers  the answers of the batches that are done
  /new      begin another conversation
  /help     this text
  /quit     leave; so does Ctrl-D
"""
CHAT_PRIORITY = 1


class Session:
    """read(prompt): the next line; EOFError at the end. write(text): shows text as it is.

    A chat call goes before those of the batches, where the server's scheduling policy heeds priorities.
    """

    def __init__(
        self, server: Server, model: str, read: Callable[[str], str], write: Callable[[str], None], max_tokens: int
    ) -> None:
        self._server = server
        self._model = model
        self._read = read
        self._write = write
        self._max_tokens = max_tokens
        self._messages: list[dict[str, str]] = []
        self._priority: dict[str, int] = {"priority": CHAT_PRIORITY}
        self._batches = Batches(self._answer_item)

    def run(self) -> None:
        """Until the user leaves."""
        try:
            while (line := self._next_line()) not in (None, "/quit"):
                self._carry_out(line or "")
        finally:
            if self._batches.num_running:
                self._write("waiting for the calls that have begun ...\n")
            self._batches.close()

    def _next_line(self) -> str | None:
        for number in self._batches.newly_done():
            self._write(f"[batch {number} is done: /answers]\n")
        try:
            return self._read("> ").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            self._write("\n")
            return ""

    def _carry_out(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        match command:
            case "":
                pass
            case "/batch":
                self._start_batch(rest)
            case "/answers":
                self._show_answers()
            case "/new":
                self._messages.clear()
            case "/help":
                self._write(HELP)
            case _ if command.startswith("/"):
                self._write(f"there is no command {command}; /help names them all\n")
            case _:
                self._chat(line)

    def _chat(self, text: str) -> None:
        """The turn is kept if the answer is; one that was stopped is kept as far as it came."""
        self._messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            with closing(self._stream()) as stream:
                for piece in stream:
                    pieces.append(piece)
                    self._write(piece)
        except KeyboardInterrupt:
            self._write(" [stopped]")
        except ServerFault as fault:
            self._messages.pop()
            self._write(f"[failed: {fault}]\n")
            return
        self._write("\n")
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    def _stream(self) -> Generator[str, None, None]:
        """Asks for priority, and where the server heeds none, once more without, for good."""
        request = self._request(self._messages, self._max_tokens)
        try:
            yield from self._server.stream_chat({**request, **self._priority})
        except ServerFault as fault:
            if fault.param != "priority" or not self._priority:
                raise
            self._priority = {}
            yield from self._server.stream_chat(request)

    def _start_batch(self, text: str) -> None:
        try:
            batch = self._batches.start(parse_batch(text))
        except BatchInputError as fault:
            self._write(f"{fault}\nfor example: /batch {EXAMPLE}\n")
            return
        self._write(f"[batch {batch.number}: {len(batch.items)} prompts are being answered]\n")

    def _show_answers(self) -> None:
        done = self._batches.take_done()
        for batch in done:
            for index, (item, answer) in enumerate(zip(batch.items, batch.answers, strict=True), 1):
                self._write(f"batch {batch.number}, {index}: {item.prompt}\n{answer_or_fault(answer)}\n\n")
        if not done:
            self._write(f"no batch is done; {self._batches.num_running} are being answered\n")

    def _answer_item(self, item: BatchItem) -> str:
        return self._server.complete_chat(self._request([{"role": "user", "content": item.prompt}], item.max_tokens))

    def _request(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        return {"model": self._model, "messages": messages, "max_tokens": max_tokens}
