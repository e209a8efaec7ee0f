import json
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from loadtest.quickstart.chat_format import (
    ASSISTANT,
    BOS,
    CHAT_TEMPLATE,
    END,
    SPECIAL_TOKENS,
    USER,
    chat_tokenizer,
    train_tokenizer,
)
from service.settings.quickstart import QUICKSTART_MODEL
from service.text.chat_template import ChatTemplate
from service.text.tool_calls import ToolStyle

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "what is a block"},
    {"role": "assistant", "content": "A block."},
    {"role": "user", "content": "thanks"},
]

FUNCTION = {"name": "now", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


@pytest.fixture(scope="module", params=["shipped", "fresh"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = QUICKSTART_MODEL
    if request.param == "fresh":
        folder = tmp_path_factory.mktemp("tokenizer")
        chat_tokenizer(train_tokenizer(["what is a block", "the server starts"], 300), 128).save_pretrained(folder)
    loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    return loaded


def test_the_template_writes_every_turn_and_bos_once(tokenizer: PreTrainedTokenizerFast) -> None:
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|bos|><|system|>Be brief.<|end|><|user|>what is a block<|end|>"
        "<|assistant|>A block.<|end|><|user|>thanks<|end|><|assistant|>"
    )
    ids = tokenizer.apply_chat_template(CONVERSATION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[-1] == tokenizer.convert_tokens_to_ids(ASSISTANT)
    assert tokenizer.decode(ids) == text


def test_plain_text_gets_one_bos_and_no_end(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("Headrace is")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in ids


def test_end_of_turn_is_the_end_of_the_sequence(tokenizer: PreTrainedTokenizerFast) -> None:
    assert (tokenizer.bos_token, tokenizer.eos_token) == (BOS, END)
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert all(token in tokenizer.all_special_tokens for token in (BOS, END, USER, ASSISTANT))


@pytest.mark.parametrize("text", ["Grüße, 世界 🙂", "a\n\tb  c ", "port 8000", "\x00\x7f", ""])
def test_any_text_survives_the_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_unknown_role_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TemplateError, match="roles"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "x"}], tokenize=False)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_tools_their_calls_and_results_are_written_into_the_turns_that_the_model_knows(
    tokenizer: PreTrainedTokenizerFast, role: str
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}
    messages = [
        {"role": role, "content": "Be brief."},
        {"role": "user", "content": "what is the time"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
    ]
    text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    taught = (
        f"You may call these functions: {json.dumps(FUNCTION)} "
        'To call one, answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.'
    )
    rest = (
        "<|user|>what is the time<|end|>"
        '<|assistant|><tool_call>{"name": "now", "arguments": {"zone": "UTC"}}</tool_call><|end|>'
        "<|user|><tool_response>noon</tool_response><|end|><|assistant|>"
    )
    assert text == f"<|bos|><|system|>Be brief. {taught}<|end|>{rest}"
    without = tokenizer.apply_chat_template(messages[1:], tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert without == f"<|bos|><|system|>{taught}<|end|>{rest}"


def test_ours_renders_as_transformers_does_and_reads_calls_in_its_style(tokenizer: PreTrainedTokenizerFast) -> None:
    template = ChatTemplate(CHAT_TEMPLATE, {"bos_token": BOS})
    assert template.tool_style is ToolStyle.HERMES
    assert template.knows_role("tool")
    ours = template.render(CONVERSATION, add_generation_prompt=True, tools=TOOLS)
    assert ours == tokenizer.apply_chat_template(CONVERSATION, tools=TOOLS, tokenize=False, add_generation_prompt=True)
