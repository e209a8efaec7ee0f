from __future__ import annotations

from openai.types.chat import ChatCompletion

from service.protocol.chat import AssistantMessage, ChatChoice, ChatRequest, ChatResponse
from tests.protocol.test_completions import USAGE


def test_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts, "name": "Ann", "mood": 1}]
    request = ChatRequest.model_validate({"model": "m", "messages": messages})
    assert request.messages[0].content == "s"
    assert request.messages[1].model_extra == {"mood": 1}
    content = request.messages[1].content
    assert isinstance(content, list)
    assert [part.type for part in content] == ["text", "image_url"]


def test_the_response_is_openais() -> None:
    message = AssistantMessage(role="assistant", content="x", refusal=None)
    choice = ChatChoice(index=0, message=message, logprobs=None, finish_reason="length")
    response = ChatResponse(
        id="i", object="chat.completion", created=1, model="m", system_fingerprint="fp_1", choices=[choice], usage=USAGE
    )
    json = response.model_dump_json(exclude_unset=True)
    ChatCompletion.model_validate_json(json, strict=True)
    assert '"refusal":null' in json
