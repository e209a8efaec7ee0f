"""The tokenizer of the quickstart model: its special tokens, its chat template and its training.

A conversation is written as `<|bos|><|user|>question<|end|><|assistant|>answer<|end|>`, with a system turn first
if there is one. `<|end|>` ends every turn and is the end-of-sequence token. Plain text gets `<|bos|>` from the
tokenizer; the template writes it itself, so rendered conversations are encoded without special tokens.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BOS, END, PAD = "<|bos|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (BOS, END, PAD, SYSTEM, USER, ASSISTANT)

CHAT_TEMPLATE = """\
{%- set ns = namespace(rest=messages, system='') %}
{%- if tools %}
    {%- if messages[0]['role'] in ['system', 'developer'] %}
        {%- set ns.system = (messages[0]['content'] or '') | trim + ' ' %}
        {%- set ns.rest = messages[1:] %}
    {%- endif %}
    {%- set ns.system = ns.system + 'You may call these functions: ' %}
    {%- for tool in tools %}
        {%- set ns.system = ns.system + (tool['function'] | tojson) + ' ' %}
    {%- endfor %}
    {%- set ns.system = ns.system + 'To call one, answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.' %}
{%- endif %}
{{- bos_token }}
{%- if ns.system %}
    {{- '<|system|>' + ns.system + '<|end|>' }}
{%- endif %}
{%- for message in ns.rest %}
    {%- set role = {'developer': 'system', 'tool': 'user'}.get(message['role'], message['role']) %}
    {%- if role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('The quickstart model knows the roles system, user, assistant and tool only.') }}
    {%- endif %}
    {%- set content = (message['content'] or '') | trim %}
    {%- if message['role'] == 'tool' %}
        {%- set content = '<tool_response>' + content + '</tool_response>' %}
    {%- endif %}
    {{- '<|' + role + '|>' + content }}
    {%- for call in message['tool_calls'] or [] %}
        {%- set function = {'name': call['function']['name'], 'arguments': call['function']['arguments']} %}
        {{- '<tool_call>' + (function | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the vocabulary holds."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return found


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE learned from the texts; single digits, and no merge across words. Any text survives
    encoding and decoding. The special tokens have the first ids, in the order of SPECIAL_TOKENS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, token_id(tokenizer, BOS))]
    )
    return tokenizer


def chat_tokenizer(tokenizer: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers saves and loads it, with the chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
