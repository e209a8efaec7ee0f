"""Where a call may fail on its way in and out: connection, body, text, grammar, frames, log, metrics."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.fault_sites import FaultSite, Moment, Reach
from tests.faults.service_scene import A_FEW, CALLS, TWO, Call

_API, _TEXT, _ENGINE, _METRICS = "service.api", "service.text", "service.engine", "service.metrics.recorder"
_BEFORE: tuple[Moment, ...] = ("before",)
"""For calls that hold nothing yet, or after which the work is a site of its own."""

ON_THE_WAY_IN = (
    FaultSite("socket_read", "service.http.protocol:BoundedProtocol.data_received", Reach.CONNECTION, OSError, _BEFORE),
    FaultSite("request_id", f"{_API}.random_ids:RandomIds.next", Reach.CONNECTION, OSError, _BEFORE),
    FaultSite("body_read", f"{_API}.calls.json_body:_read", Reach.REQUEST, MemoryError),
    FaultSite("body_budget", f"{_API}.middleware.body_budget:BodyShare.take", Reach.REQUEST, MemoryError),
    FaultSite("parse_chat", f"{_API}.endpoints.chat_completions:parse", Reach.REQUEST, RecursionError, _BEFORE),
    FaultSite("parse_completion", f"{_API}.endpoints.completions:parse", Reach.REQUEST, RecursionError, _BEFORE),
    FaultSite("check_call", f"{_API}.calls.chat_call:check_call", Reach.REQUEST, moments=_BEFORE),
    FaultSite("render_template", f"{_TEXT}.chat_template:ChatTemplate.render", Reach.REQUEST, MemoryError),
    FaultSite("tokenize", f"{_TEXT}.tokenizer:Tokenizer.encode", Reach.REQUEST, MemoryError),
    FaultSite("tokenize_chat", f"{_TEXT}.tokenizer:Tokenizer.encode_rendered", Reach.REQUEST, MemoryError),
    FaultSite("decode", f"{_TEXT}.tokenizer:Tokenizer.decode", Reach.REQUEST, MemoryError, _BEFORE),
    FaultSite("text_pool", f"{_API}.text_pool:TextPool.run", Reach.REQUEST, RuntimeError),
    FaultSite("prompt_pool", f"{_API}.text_pool:TextPool.run_prompt", Reach.REQUEST, RuntimeError),
    FaultSite("grammar", "service.structured.grammar_compiler:GrammarCompiler.compile", Reach.REQUEST),
    FaultSite("try_grammar", "service.structured.compile_trials:CompileTrials.run", Reach.REQUEST, OSError),
    FaultSite("compile_grammar", "service.structured.grammar_compiler:compile_grammar", Reach.REQUEST, MemoryError),
    FaultSite("build_requests", f"{_API}.answers.answering:build_requests", Reach.REQUEST),
    FaultSite("trace_made", f"{_API}.answers.answering:CallTrace", Reach.REQUEST, MemoryError),
    FaultSite("generation", f"{_API}.answers.answering:Generation", Reach.REQUEST, MemoryError),
    FaultSite("submit", f"{_ENGINE}.async_engine:AsyncEngine.submit", Reach.REQUEST, MemoryError),
    FaultSite("trace", f"{_API}.call_trace:TraceStore.add", Reach.REQUEST, MemoryError),
)

ON_THE_WAY_OUT = (
    FaultSite("chat_answer", f"{_API}.endpoints.chat_completions:ChatAnswer", Reach.REQUEST, MemoryError),
    FaultSite("completion_answer", f"{_API}.endpoints.completions:CompletionAnswer", Reach.REQUEST, MemoryError),
    FaultSite("answer_stream", f"{_API}.answers.answering:TokenStreamResponse", Reach.REQUEST, MemoryError),
    FaultSite("answer_whole", f"{_API}.answers.answering:_whole", Reach.REQUEST, MemoryError),
    FaultSite("collect", f"{_API}.answers.generation:Generation.collect", Reach.REQUEST),
    FaultSite("close", f"{_API}.answers.generation:Generation.close", Reach.REQUEST),
    FaultSite("read_by", f"{_API}.answers.generation:Generation.read_by", Reach.CONNECTION),
    FaultSite("stop_choice", f"{_ENGINE}.async_engine:AsyncEngine.stop_choice", Reach.REQUEST),
    FaultSite("trace_end", f"{_API}.call_trace:CallTrace.note_end", Reach.REQUEST, MemoryError),
    FaultSite("usage_frame", f"{_API}.answers.chunk_frames:ChunkFrames.usage", Reach.REQUEST, moments=_BEFORE),
    FaultSite("whole_json", f"{_API}.answers.completion_answer:whole_json", Reach.REQUEST, MemoryError),
    FaultSite(
        "send", "uvicorn.protocols.http.httptools_impl:RequestResponseCycle.send", Reach.CONNECTION, OSError, _BEFORE
    ),
)

BESIDE_THE_WAY = (
    FaultSite("inbox", f"{_ENGINE}.engine_loop:EngineLoop.send", Reach.REQUEST, MemoryError, _BEFORE),
    FaultSite("log", "service.process.log_writer:LogWriter.offer", Reach.NOBODY, MemoryError, _BEFORE),
    FaultSite("log_write", "service.process.log_writer:_write_whole", Reach.NOBODY, OSError, _BEFORE),
    FaultSite("log_thread", "service.process.log_writer:LogWriter._write", Reach.NOBODY, MemoryError, _BEFORE),
    FaultSite("metrics_http", f"{_METRICS}:Recorder.record_http", Reach.NOBODY, MemoryError, _BEFORE),
    FaultSite("metrics_abort", f"{_METRICS}:Recorder.record_abort", Reach.NOBODY, MemoryError, _BEFORE),
    FaultSite("metrics_request", f"{_METRICS}:Recorder.record_request", Reach.NOBODY, MemoryError, _BEFORE),
    FaultSite("clock", "service.core.clock:MonotonicClock.now_s", Reach.REQUEST, OSError, caller="create"),
)

ON_EVERY_TOKEN = (
    FaultSite("take_pieces", f"{_API}.answers.generation:Generation.take_pieces", Reach.REQUEST, moments=_BEFORE),
    FaultSite("detokenize", f"{_TEXT}.byte_detokenizer:ByteDetokenizer.push", Reach.REQUEST, KeyError, _BEFORE),
    FaultSite("stop_strings", f"{_TEXT}.stop_strings:StopMatcher.push", Reach.REQUEST, moments=_BEFORE),
    FaultSite("tool_parse", f"{_TEXT}.chat_output:ChatOutput.push", Reach.REQUEST, moments=_BEFORE),
    FaultSite("frame", f"{_API}.answers.chunk_frames:ChunkFrames.choice", Reach.REQUEST, moments=_BEFORE),
    FaultSite("plain_frame", f"{_API}.answers.frame_stream:FrameStream._take_plain", Reach.REQUEST, moments=_BEFORE),
    FaultSite("write_now", "service.http.request_cycle:write_now", Reach.CONNECTION, OSError, _BEFORE),
)
"""Called so often that only a few calls of different kinds are played."""

THE_END_OF_A_SERVER = (
    FaultSite("outbox", f"{_ENGINE}.engine_loop:EngineLoop._hand_over", Reach.PROCESS, MemoryError, _BEFORE),
    FaultSite("deliver", f"{_ENGINE}.streams:StreamDelivery.deliver", Reach.PROCESS, MemoryError, _BEFORE),
    FaultSite("pacing", f"{_ENGINE}.streams:StreamPacing.deliver", Reach.PROCESS, MemoryError, _BEFORE),
    FaultSite("reader", f"{_ENGINE}.streams:RequestStream.wake", Reach.PROCESS, MemoryError, _BEFORE),
)
"""Each run needs a new server, so only two calls are played."""

SERVICE_SITES = (*ON_THE_WAY_IN, *ON_THE_WAY_OUT, *BESIDE_THE_WAY, *ON_EVERY_TOKEN, *THE_END_OF_A_SERVER)


BEFORE_THE_ANSWER = tuple(
    site
    for site in SERVICE_SITES
    if site.name in {"trace", "chat_answer", "completion_answer", "answer_stream", "answer_whole"}
)
"""A call has submitted its requests, and nothing reads them yet."""


def calls_of(site: FaultSite) -> Sequence[Call]:
    """The calls that are played with a fault at this site."""
    if site in THE_END_OF_A_SERVER:
        return TWO
    return A_FEW if site in ON_EVERY_TOKEN else CALLS
