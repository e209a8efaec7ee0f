from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest

from service.composition.kv_events import make_kv_events
from service.errors import ConfigError
from service.kvcache.kv_events import NoKvEvents
from service.settings.settings import Settings

ENDPOINT = "tcp://127.0.0.1:*"


def test_nobody_is_told_unless_it_is_asked_for():
    assert isinstance(make_kv_events(Settings(), 16, ExitStack()), NoKvEvents)


def test_without_a_prefix_cache_or_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="enable-prefix-caching"):
        make_kv_events(Settings(kv_events_endpoint=ENDPOINT, enable_prefix_caching=False), 16, ExitStack())
    monkeypatch.delitem(sys.modules, "service.kv_events.publisher", raising=False)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[kv-events\]'"):
        make_kv_events(Settings(kv_events_endpoint=ENDPOINT), 16, ExitStack())


def test_the_sockets_are_closed_at_the_end():
    zmq = pytest.importorskip("zmq", reason="the extra kv-events is not installed")
    pytest.importorskip("msgpack")
    with ExitStack() as at_end:
        publisher = make_kv_events(Settings(kv_events_endpoint=ENDPOINT), 16, at_end)
        address = publisher._publications.getsockopt_string(zmq.LAST_ENDPOINT)
    with zmq.Context() as context, context.socket(zmq.PUB) as again:
        again.bind(address)
