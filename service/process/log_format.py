"""The format of log lines: text for people, or one JSON object for log collectors."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from service.core.log_fields import FIELDS

LogFormat = Literal["auto", "text", "json"]

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def make_formatter(form: LogFormat, *, is_terminal: bool) -> logging.Formatter:
    """auto: on a terminal text; elsewhere records with FIELDS are JSON and all others text."""
    if form == "text" or (form == "auto" and is_terminal):
        return logging.Formatter(_TEXT)
    return _JsonFormatter(every_record=form == "json")


class _JsonFormatter(logging.Formatter):
    """A record with FIELDS shows only these; others show their message."""

    def __init__(self, *, every_record: bool) -> None:
        super().__init__(_TEXT)
        self._every_record = every_record

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] | None = getattr(record, FIELDS, None)
        if fields is None and not self._every_record:
            return super().format(record)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line.update({"message": record.getMessage()} if fields is None else fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()
