"""The one table of worst inputs, and the modules that need none."""

from __future__ import annotations

from tests.complexity.answer_inputs import ANSWER_INPUTS
from tests.complexity.door_inputs import DOOR_INPUTS
from tests.complexity.embedding_inputs import EMBEDDING_INPUTS
from tests.complexity.file_inputs import FILE_INPUTS
from tests.complexity.form_inputs import FORM_INPUTS
from tests.complexity.http_inputs import HTTP_INPUTS
from tests.complexity.messages_inputs import MESSAGES_INPUTS
from tests.complexity.response_inputs import RESPONSE_INPUTS
from tests.complexity.text_inputs import TEXT_INPUTS
from tests.complexity.training_file_inputs import TRAINING_FILE_INPUTS

WORST_INPUTS = [
    *HTTP_INPUTS,
    *DOOR_INPUTS,
    *RESPONSE_INPUTS,
    *FILE_INPUTS,
    *FORM_INPUTS,
    *TEXT_INPUTS,
    *ANSWER_INPUTS,
    *MESSAGES_INPUTS,
    *EMBEDDING_INPUTS,
    *TRAINING_FILE_INPUTS,
]

WITHOUT_WORST_INPUT = {
    "api/middleware/body_budget.py": "a number a connection, at most 10,000 of them; all are looked at if it is full",
    "api/middleware/body_limits.py": "adds up lengths",
    "api/answers/answer_form.py": "a Protocol only",
    "api/answers/event_stream.py": "passes on events, a few a second",
    "api/answers/followed_trace.py": "shows a trace at most twice a second",
    "api/admin_only.py": "looks at what others have noted",
    "api/call_head.py": "reads nothing of the request",
    "api/answers/call_ids.py": "reads nothing of the request",
    "api/calls/field_names.py": "looks at a refusal, whose field and text are short",
    "api/endpoints/generating.py": "values only",
    "api/calls/chat_call.py": "joins others, each in the table",
    "api/calls/response_call.py": "joins others, each in the table",
    "api/answers/background.py": "joins others, each in the table",
    "api/calls/response_history.py": "joins others, each in the table; what it reads back is no longer than a body",
    "api/endpoints/stored_responses.py": "joins others, each in the table",
    "api/endpoints/responses.py": "joins others, each in the table",
    "api/calls/completion_call.py": "joins others, each in the table",
    "api/endpoints/chat_completions.py": "joins others, each in the table",
    "api/calls/chat_prompting.py": "joins others, each in the table; its options are few and short",
    "api/endpoints/completions.py": "joins others, each in the table",
    "api/endpoints/embeddings.py": "joins others, each in the table",
    "api/context.py": "values only",
    "api/call_summary.py": "adds up what each prompt of a call took",
    "api/http_exchange.py": "values only",
    "api/request_log.py": "a line of facts that are few and short",
    "api/request_spans.py": "facts that are few and short; two headers, of at most 16 KiB with all others",
    "api/disconnect.py": "looks at no bytes",
    "api/freed_memory.py": "reads nothing of the request",
    "api/endpoints/adapters.py": "for operators",
    "api/endpoints/fine_tuning.py": "joins others; a list's fields are few and short, and lists are paged",
    "api/answers/fine_tuning_objects.py": "shows what was checked when it came, a page at a time",
    "api/endpoints/batches.py": "joins others, each in the table; lists are paged",
    "api/batch_calls.py": "joins others, each in the table",
    "api/endpoints/files.py": "joins others, each in the table; lists are paged",
    "api/answers/file_content.py": "passes on pieces of a file",
    "api/calls/page_query.py": "three short words",
    "api/calls/query_fields.py": "a short word each",
    "api/endpoints/health.py": "reads nothing of the request",
    "api/middleware/key_limit.py": "looks a key's name up",
    "api/calls/token_budget.py": "adds up lengths",
    "api/endpoints/invocations.py": "joins others, each in the table",
    "api/endpoints/api_docs.py": "reads nothing of the request",
    "api/endpoints/tokenizer_info.py": "reads nothing of the request",
    "api/endpoints/load.py": "reads nothing of the request",
    "api/endpoints/prefix_cache.py": "reads nothing of the request",
    "api/endpoints/render.py": "joins others, each in the table",
    "api/endpoints/messages.py": "joins others, each in the table",
    "api/endpoints/metrics.py": "reads nothing of the request",
    "api/endpoints/openapi.py": "reads nothing of the request",
    "api/answers/frame_stream.py": "joins others, each in the table; a plain frame is text that others have read",
    "api/endpoints/playground.py": "looks a name up",
    "api/calls/prepared_call.py": "adds up lengths and cuts a list, once a prompt",
    "api/serving_state.py": "reads nothing of the request",
    "api/answers/sse.py": "passes on frames",
    "api/endpoints/tokenize.py": "joins others, each in the table",
    "api/endpoints/version.py": "reads nothing of the request",
    "protocol/adapters.py": "two short names",
    "protocol/batches.py": "three short fields and 16 short pairs",
    "protocol/files.py": "only written",
    "protocol/error_body.py": "only written",
    "protocol/messages_error.py": "only written",
    "protocol/models.py": "only written",
    "protocol/render.py": "only written",
    "protocol/trace.py": "only written",
    "protocol/usage.py": "only written",
    "structured/compilation.py": "tried first in a process that the kernel stops, by its time and its memory",
    "structured/compile_fork_server.py": "passes grammars on, each as long as the door lets through",
    "structured/compile_trials.py": "passes grammars on, each as long as the door lets through",
    "structured/grammar_compiler.py": "joins others; how many it does at once is bounded",
    "structured/grammar_errors.py": "a message of the library's, of which it keeps the first line",
    "structured/grammar_matcher.py": "a token at a time, within llguidance's limits of a step",
    "structured/token_bitmask.py": "a row a sequence, as wide as the vocabulary",
    "structured/vocabulary.py": "read when the model is loaded",
    "text/byte_level_bpe.py": "read when the model is loaded",
    "text/dummy_tokenizer.py": "for models of random weights: an id a character",
    "text/tokenizer_config.py": "read when the model is loaded",
}
"""Module -> why no size of a client's input makes it work long."""
