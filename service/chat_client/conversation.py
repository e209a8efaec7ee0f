"""The conversation so far, and its file: JSON, with `messages` in OpenAI's form."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

_ROLES = ("system", "user", "assistant")
_MAX_FILE_BYTES = 64 * 1024 * 1024


class ConversationError(Exception):
    """A file cannot be read or written; the message is for the user."""


class Conversation:
    """system: the system message; empty if there is none. turns: the messages of user and assistant, in order.

    It overwrites no files except those that it has read or written itself.
    """

    def __init__(self) -> None:
        self.system = ""
        self.turns: list[dict[str, str]] = []
        self._own_files: set[Path] = set()

    def messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.turns]

    def say(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def take_back_question(self) -> None:
        """Removes the last question, which was not answered."""
        self.turns.pop()

    def take_back_answer(self) -> bool:
        """Removes the last answer, to be generated again; False if there is none."""
        if not self.turns or self.turns[-1]["role"] != "assistant":
            return False
        self.turns.pop()
        return True

    def save(self, name: str) -> Path:
        """Returns the path. The file is written whole or not at all. Raises ConversationError."""
        path = Path(name).expanduser()
        if path.exists() and path.resolve() not in self._own_files:
            raise ConversationError(f"there is a file {path} already; save under another name")
        text = json.dumps({"messages": self.messages()}, ensure_ascii=False, indent=2) + "\n"
        try:
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
                file.write(text)
            os.replace(file.name, path)
        except (OSError, UnicodeEncodeError) as fault:
            raise ConversationError(f"{path} cannot be written: {_reason(fault)}") from fault
        self._own_files.add(path.resolve())
        return path

    def load(self, name: str) -> Path:
        """Replaces the conversation by the file's. Raises ConversationError, and then nothing has changed."""
        path = Path(name).expanduser()
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise ConversationError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as fault:
            raise ConversationError(f"{path} cannot be read: {_reason(fault)}") from fault
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise ConversationError(
                f"{path} holds no list of messages, each with a role ({', '.join(_ROLES)}) and text"
            )
        self.system = "\n".join(each["content"] for each in messages if each["role"] == "system")
        self.turns = [
            {"role": each["role"], "content": each["content"]} for each in messages if each["role"] != "system"
        ]
        self._own_files.add(path.resolve())
        return path


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in _ROLES and isinstance(value.get("content"), str)


def _reason(fault: BaseException) -> str:
    return (fault.strerror or str(fault)) if isinstance(fault, OSError) else str(fault)
