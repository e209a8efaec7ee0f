"""The access log: one record per answered request, which the log's format writes as JSON or as a line for people."""

from __future__ import annotations

import logging
from typing import Any

from service.api.call_summary import CallSummary, summarized
from service.api.http_exchange import HttpExchange
from service.core.log_fields import FIELDS

_logger = logging.getLogger("headrace.access")


def log_exchange(exchange: HttpExchange) -> None:
    """An `HttpWatcher`."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    call = None if exchange.call is None else summarized(exchange.call)
    _logger.info("%s", _Line(exchange, call), extra={FIELDS: _fields(exchange, call)})


def _fields(exchange: HttpExchange, call: CallSummary | None) -> dict[str, Any]:
    """Unknown values are left out."""
    facts = {
        "request_id": exchange.request_id,
        "key": exchange.client or None,
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "seconds": round(exchange.seconds, 6),
        "error": exchange.error_code,
        **({} if call is None else call._asdict()),
    }
    return {name: value for name, value in facts.items() if value is not None}


class _Line:
    """Formatted only if a handler writes it."""

    def __init__(self, exchange: HttpExchange, call: CallSummary | None) -> None:
        self._exchange = exchange
        self._call = call

    def __str__(self) -> str:
        exchange, call = self._exchange, self._call
        line = f"{exchange.method} {exchange.route} {exchange.status} {exchange.seconds * 1e3:.1f} ms"
        line += f" {exchange.request_id} {exchange.client or '-'}"
        if exchange.error_code is not None:
            line += f" {exchange.error_code}"
        return line if call is None else f"{line} {_of_call(call)}"


def _of_call(call: CallSummary) -> str:
    ends = ", ".join(f"{reason} {count}" if count > 1 else reason for reason, count in call.finish.items())
    words = [
        f"{call.id} {call.model}: {call.outcome}{f' ({ends})' if ends else ''}",
        f"{call.prompt_tokens} tokens in ({call.cached_tokens} cached), {call.output_tokens} out",
    ]
    words += [f"waited {call.queue_s * 1e3:.0f} ms"] if call.queue_s is not None else []
    words += [f"first token after {call.ttft_s * 1e3:.0f} ms"] if call.ttft_s is not None else []
    words += [f"{call.tpot_s * 1e3:.1f} ms a token"] if call.tpot_s is not None else []
    words += [f"preempted {call.preemptions} times"] if call.preemptions else []
    words += [f"deferred {call.deferral_s * 1e3:.0f} ms"] if call.deferral_s else []
    return ", ".join(words)
