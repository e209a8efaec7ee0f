"""What the routers are started with: the shipped files, as they are."""

from __future__ import annotations

from loadtest.routers import HAPROXY_FILE, SEES_A_DRAIN, haproxy_configuration, kv_aware, kv_event_flags, program
from tests.deploy.deployment import services

URLS = ["http://127.0.0.1:7001", "http://127.0.0.1:7002"]


def test_haproxy_has_the_shipped_file_but_for_addresses():
    shipped = HAPROXY_FILE.read_text()
    text = haproxy_configuration(shipped, URLS, 7000)
    for url in URLS:
        assert url.removeprefix("http://") in text
    assert not [word for word in ("headrace", "docker", "server-template", ":8000") if word in _without_comments(text)]
    rules = ("balance ", "option ", "retry-on ", "retries ", "timeout ", "use_backend ")
    assert [line for line in text.splitlines() if line.strip().startswith(rules)] == [
        line for line in shipped.splitlines() if line.strip().startswith(rules)
    ]
    assert text.count("check inter 2s fall 1 rise 1") == len(URLS) + 1


def test_vllm_router_is_measured_with_the_checks_that_are_shipped():
    assert {*SEES_A_DRAIN} <= {*services()["prefix-router"]["command"]}


def test_a_replica_has_its_events_and_their_replay():
    flags = kv_aware("m", {url: (f"{url}-events", f"{url}-replays") for url in URLS})
    for url in URLS:
        assert f"--kv-event-source={url}={url}-events" in flags
        assert f"--kv-event-replay-source={url}={url}-replays" in flags
    assert "--kv-event-model=m" in flags


def test_a_replica_listens_where_the_router_connects_to():
    flags = kv_event_flags("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    assert flags == ("--kv-events-endpoint", "tcp://*:1", "--kv-events-replay-endpoint", "tcp://*:2")


def test_a_program_that_is_not_there():
    assert program("no-such-router") is None
    assert program("python") is not None, "beside this Python"


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
