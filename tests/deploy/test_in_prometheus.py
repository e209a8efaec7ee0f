"""Beside a real Prometheus, where there is one: its own checks of the files, and its answer to every expression."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import socket

import httpx
import pytest
import yaml

from tests.deploy.deployment import ALERTS, PROMETHEUS, alert_expressions, dashboard_expressions, filled_in, read_yaml
from tests.deploy.loaded_server import loaded_server, make_load

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus")


@needs_promtool
def test_the_configuration_and_the_rules_are_valid():
    done = subprocess.run(["promtool", "check", "config", str(PROMETHEUS)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


UP = {'up{job="headrace", instance="a"}': "1x60"}
SERIES = {
    "HeadraceDown": {'up{job="headrace", instance="a"}': "0x60"},
    "HeadraceNotFound": {'up{job="another", instance="a"}': "1x60"},
    "HeadraceStuck": {
        'headrace_requests_running{job="headrace", instance="a"}': "0x60",
        'headrace_requests_waiting{job="headrace", instance="a"}': "2x60",
        'headrace_iteration_batch_size_count{job="headrace", instance="a"}': "500x60",
    },
    "HeadraceFailing": {'headrace_failed_iterations_in_a_row{job="headrace", instance="a"}': "3x60"},
    "HeadraceServerErrors": {
        'headrace_http_requests_total{job="headrace", instance="a", route="/v1/completions", status="200"}': "0+10x60",
        'headrace_http_requests_total{job="headrace", instance="a", route="/v1/completions", status="500"}': "0+1x60",
    },
    "HeadraceRefusing": {'headrace_rejections_total{job="headrace", instance="a", reason="overloaded"}': "0+3x60"},
    "HeadraceLongQueue": {
        'headrace_queue_seconds_bucket{job="headrace", instance="a", le="10.0"}': "0+1x60",
        'headrace_queue_seconds_bucket{job="headrace", instance="a", le="15.0"}': "0+9x60",
        'headrace_queue_seconds_bucket{job="headrace", instance="a", le="+Inf"}': "0+10x60",
    },
    "HeadraceKvCacheFull": {
        'headrace_kv_blocks_used_ratio{job="headrace", instance="a"}': "0.99x60",
        'headrace_requests_waiting{job="headrace", instance="a"}': "5x60",
    },
    "HeadracePreempting": {
        'headrace_preemptions_total{job="headrace", instance="a", kind="recompute"}': "0+6x60",
        'headrace_preemptions_total{job="headrace", instance="a", kind="swap"}': "0+0x60",
        'headrace_requests_total{job="headrace", instance="a", reason="stop"}': "0+10x60",
    },
    "HeadraceEventLoopLate": {
        'headrace_event_loop_lag_seconds_bucket{job="headrace", instance="a", le="0.25"}': "0+10x60",
        'headrace_event_loop_lag_seconds_bucket{job="headrace", instance="a", le="0.5"}': "0+20x60",
        'headrace_event_loop_lag_seconds_bucket{job="headrace", instance="a", le="+Inf"}': "0+20x60",
    },
}
"""What makes each alert fire, in promtool's notation, a value each 15 s; beside UP, if it says nothing of that."""


@needs_promtool
@pytest.mark.parametrize("alert", alert_expressions())
def test_an_alert_fires_when_it_should_and_no_other_does(alert: str, tmp_path: Path):
    fired = [
        {"eval_time": "14m", "alertname": other, "exp_alerts": [{"exp_labels": {}}] if other == alert else []}
        for other in alert_expressions()
    ]
    given = SERIES[alert] if any(name.startswith("up{") for name in SERIES[alert]) else {**UP, **SERIES[alert]}
    series = [{"series": name, "values": values} for name, values in given.items()]
    for expected in fired:  # labels and texts are not what is asked here: they are taken from the rule
        rule = next(r for g in read_yaml(ALERTS)["groups"] for r in g["rules"] if r["alert"] == expected["alertname"])
        for alert_labels in expected["exp_alerts"]:
            alert_labels["exp_labels"] = {**rule["labels"], **_labels_of(rule["expr"])}
    (tmp_path / "alerts.yml").write_text(_without_annotations())
    tests = {
        "rule_files": ["alerts.yml"],
        "tests": [{"interval": "15s", "input_series": series, "alert_rule_test": fired}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _labels_of(expression: str) -> dict[str, str]:
    """Of the alert: those of the series, unless it sums them up by instance or there is none."""
    if expression.startswith("absent("):
        return {"job": "headrace"}
    return {"instance": "a"} if "sum by" in expression else {"instance": "a", "job": "headrace"}


def _without_annotations() -> str:
    rules = read_yaml(ALERTS)
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return yaml.safe_dump(rules)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """URL of one that scrapes a server under load, every half second."""
    with loaded_server(tmp_path / "dummy") as server, closing(socket()) as free:
        config = read_yaml(PROMETHEUS)
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        del config["scrape_configs"][0]["dns_sd_configs"]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(ALERTS, tmp_path / "alerts.yml")
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        with open(os.devnull, "w") as nowhere:
            process = subprocess.Popen(["prometheus", *flags, f"--web.listen-address={address}"], stderr=nowhere)
        over = threading.Event()
        loading = threading.Thread(target=lambda: [make_load(server.url) for _ in range(100) if not over.is_set()])
        loading.start()
        time.sleep(15)
        yield f"http://{address}"
        over.set()
        loading.join()
        process.terminate()
        process.wait()


MEAN_OF_DEFERRALS = "Deferral, mean"
"""Of none there is no mean, and here nothing is trained."""
OF_RANKS = "headrace_rank_", "headrace_stage_"
"""How the metrics of ranks begin: a server of one rank, as here, has none (tests/e2e/test_tensor_parallel.py)."""


@needs_prometheus
@pytest.mark.load
def test_every_expression_has_an_answer_under_load(prometheus: str):
    def ask(expression: str) -> list[object]:
        answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    silent = {where: e for where, e in dashboard_expressions().items() if not ask(filled_in(e))}
    assert {
        where
        for where, e in silent.items()
        if MEAN_OF_DEFERRALS not in where and not any(begin in e for begin in OF_RANKS)
    } == set()
    for expression in alert_expressions().values():
        ask(expression)
    rules = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
    assert {rule["name"]: rule["health"] for group in rules for rule in group["rules"]} == dict.fromkeys(
        alert_expressions(), "ok"
    )
