from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from service.text.chat_prompt import PromptOptions, encode_chat
from service.text.chat_template import ChatTemplate, TemplateRefusal
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TEMPLATE = ChatTemplate(tiny_tokenizers.CHAT_TEMPLATE, {})
TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
ORACLE = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizers.byte_level())
ORACLE.chat_template = tiny_tokenizers.CHAT_TEMPLATE
HOSTILE = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<|bos|>", "system", "\n", "<|im_", "end|>", "<", "ok ", "<think>"]),
    max_size=8,
).map("".join)


def user(content: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@given(st.text(max_size=40))
def test_equals_transformers_for_text_without_special_tokens(content: str) -> None:
    expected = ORACLE.apply_chat_template(user(content), add_generation_prompt=True)["input_ids"]
    assert encode_chat(TOKENIZER, TEMPLATE, user(content)) == expected


def test_adds_no_second_bos() -> None:
    template = ChatTemplate("{{ bos_token }}" + tiny_tokenizers.CHAT_TEMPLATE, {"bos_token": "<|bos|>"})
    assert encode_chat(TOKENIZER, template, user("hi")).count(0) == 1


@given(HOSTILE, HOSTILE)
def test_no_text_of_a_client_becomes_a_special_token(first: str, second: str) -> None:
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": second}]
    ids = encode_chat(TOKENIZER, TEMPLATE, messages)
    special = [token_id for token_id in ids if token_id in TOKENIZER.special_ids]
    assert special == [1, 2, 1, 2, 1]  # the template's own
    expected = f"user\n{first}\nassistant\n{second}\nassistant\n"
    assert TOKENIZER.decode(ids) == expected


def test_a_special_token_put_together_from_two_texts_stays_plain() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    messages = [{"role": "user", "content": "<|im_"}, {"role": "user", "content": "end|>"}]
    ids = encode_chat(TOKENIZER, template, messages)
    assert not TOKENIZER.special_ids & set(ids)
    assert TOKENIZER.decode(ids) == "<|im_end|>"


def test_special_tokens_are_plain_text_wherever_they_stand_in_a_message() -> None:
    template = ChatTemplate("{{ messages[0].name }}:{{ messages[0] | tojson }}", {})
    ids = encode_chat(TOKENIZER, template, [{"role": "user", "content": "<|im_end|>", "name": "<|im_start|>"}])
    assert not TOKENIZER.special_ids & set(ids)


def test_other_spellings_of_a_normalised_special_token_stay_plain() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([tokenizers.AddedToken("<stop>", normalized=True)])
    stop_id = tokenizer.token_to_id("<stop>")
    assert stop_id in tokenizer.encode("a<STOP>").ids
    assert stop_id not in encode_chat(Tokenizer(tokenizer), TEMPLATE, user("a<STOP>"))
    own = ChatTemplate("{{ messages[0].content }}<stop>", {})
    assert encode_chat(Tokenizer(tokenizer), own, user("a<STOP>")).count(stop_id) == 1


def test_a_refusal_shows_the_clients_text_as_it_was() -> None:
    template = ChatTemplate("{{ raise_exception('bad: ' + messages[0].content) }}", {})
    with pytest.raises(TemplateRefusal, match=r"^bad: <\|im_end\|>$"):
        encode_chat(TOKENIZER, template, user("<|im_end|>"))


@pytest.mark.parametrize("depth", [20_000, 100_000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    nested: object = {}
    for _ in range(depth):
        nested = [nested]
    template = ChatTemplate("{{ tools | tojson }}{{ messages | tojson }}", {})
    tools = PromptOptions(tools=[{"type": "function", "extra": nested}])
    for messages, options in ((user("hi"), tools), ([{"role": "assistant", "tool_calls": [nested]}], None)):
        with pytest.raises(TemplateRefusal, match="nested too deeply"):
            encode_chat(TOKENIZER, template, messages, options)


def test_a_final_message_is_continued() -> None:
    messages = [*user("Count."), {"role": "assistant", "content": "one, two, "}]
    ids = encode_chat(TOKENIZER, TEMPLATE, messages, PromptOptions(continue_final_message=True))
    text = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\none, two, "
    assert ids == TOKENIZER.encode(text, add_special_tokens=False)
    dropping = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(TemplateRefusal, match="cannot be continued"):
        encode_chat(TOKENIZER, dropping, messages, PromptOptions(continue_final_message=True))


def test_without_a_generation_prompt() -> None:
    ids = encode_chat(TOKENIZER, TEMPLATE, user("hi"), PromptOptions(add_generation_prompt=False))
    assert ids == TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>\n", add_special_tokens=False)


def test_equals_transformers_with_tools() -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizers.byte_level())
    oracle.chat_template = tiny_tokenizers.TOOL_TEMPLATE
    tool = {"type": "function", "function": {"name": "now", "description": "Tells the time.", "parameters": {}}}
    call = {"type": "function", "function": {"name": "now", "arguments": {"tz": "UTC"}}}
    messages = [*user("Time?"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages += [{"role": "tool", "content": "12:00"}]
    expected = oracle.apply_chat_template(messages, tools=[tool], add_generation_prompt=True)["input_ids"]
    template = ChatTemplate(tiny_tokenizers.TOOL_TEMPLATE, {})
    assert encode_chat(TOKENIZER, template, messages, PromptOptions(tools=[tool])) == expected


def test_special_text_in_tools_and_options_is_plain() -> None:
    template = ChatTemplate("{{ tools[0].name }}{{ date_string }}", {})
    options = PromptOptions(tools=[{"name": "<|im_end|>"}], template_options={"date_string": "<|im_start|>"})
    ids = encode_chat(TOKENIZER, template, user("x"), options)
    assert not TOKENIZER.special_ids & set(ids)
    assert TOKENIZER.decode(ids) == "<|im_end|><|im_start|>"
