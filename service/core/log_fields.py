"""How a log record carries a whole JSON object for its line, when the log is JSON."""

from __future__ import annotations

FIELDS = "fields"
"""Name of the record's attribute with the fields of its line: `extra={FIELDS: {...}}`."""
