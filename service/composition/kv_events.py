"""From the settings to the publisher of the prefix cache's events."""

from __future__ import annotations

from contextlib import ExitStack

from service.errors import ConfigError
from service.kvcache.kv_events import KvEvents, NoKvEvents
from service.settings.settings import Settings


def make_kv_events(settings: Settings, tokens_per_entry: int, at_end: ExitStack) -> KvEvents:
    """at_end: closes the sockets. ConfigError if an address is not available, or the extra is not installed."""
    if settings.kv_events_endpoint is None:
        return NoKvEvents()
    if not settings.enable_prefix_caching:
        raise ConfigError("kv-events-endpoint needs enable-prefix-caching: there are no events without it")
    try:
        from service.kv_events.publisher import KvEventPublisher
    except ImportError as fault:
        raise ConfigError("kv-events-endpoint: pyzmq is not installed: pip install 'headrace[kv-events]'") from fault
    publisher = KvEventPublisher(
        settings.kv_events_endpoint,
        settings.kv_events_replay_endpoint,
        settings.kv_events_topic or "",
        tokens_per_entry,
    )
    at_end.callback(publisher.close)
    return publisher
