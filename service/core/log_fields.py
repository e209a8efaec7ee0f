"""How a log record says that its line, where lines are JSON, is an object of its own."""

from __future__ import annotations

FIELDS = "fields"
"""The record's attribute that holds what it says, by name: `extra={FIELDS: {...}}`."""
