from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.chat_client.conversation import Conversation, ConversationError


def talk() -> Conversation:
    conversation = Conversation()
    conversation.system = "Be brief."
    conversation.say("Grüße 🙂")
    conversation.answer("Hello")
    return conversation


def test_what_was_saved_is_loaded(tmp_path: Path):
    file = tmp_path / "talk.json"
    assert talk().save(str(file)) == file
    again = Conversation()
    again.say("forgotten")
    again.load(str(file))
    assert (again.system, again.messages()) == ("Be brief.", talk().messages())
    assert list(tmp_path.iterdir()) == [file]


def test_a_list_of_openais_messages_will_do(tmp_path: Path):
    file = tmp_path / "list.json"
    file.write_text(json.dumps(talk().messages()))
    again = Conversation()
    again.load(str(file))
    assert again.messages() == talk().messages()


def test_only_its_own_files_are_overwritten(tmp_path: Path):
    other = tmp_path / "other.json"
    other.write_text("precious")
    with pytest.raises(ConversationError, match="there is a file"):
        talk().save(str(other))
    assert other.read_text() == "precious"
    mine = talk()
    for _ in range(2):
        mine.save(str(tmp_path / "mine.json"))
    reader = Conversation()
    reader.load(str(tmp_path / "mine.json"))
    reader.save(str(tmp_path / "mine.json"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "1",
        "{}",
        '{"messages": 1}',
        '[{"role": "user"}]',
        '[{"role": "tool", "content": "x"}]',
        '["a"]',
        "\xff",
    ],
)
def test_what_cannot_be_read_changes_nothing(tmp_path: Path, text: str):
    file = tmp_path / "broken.json"
    file.write_bytes(text.encode("latin-1"))
    conversation = talk()
    with pytest.raises(ConversationError, match=r"broken\.json"):
        conversation.load(str(file))
    assert conversation.messages() == talk().messages()


def test_what_cannot_be_written_is_told(tmp_path: Path):
    for name in (tmp_path / "no" / "such.json", tmp_path):
        with pytest.raises(ConversationError):
            talk().save(str(name))
