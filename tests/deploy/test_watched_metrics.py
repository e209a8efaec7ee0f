"""Dashboards, alerts and autoscaling ask for nothing that a real server under load does not export."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import httpx
import promql_parser
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.core.stats import RankFacts
from service.metrics.rank_metrics import RankMetrics
from tests.deploy.deployment import (
    DASHBOARDS,
    DEPLOY,
    PROMETHEUS,
    ROOT,
    alert_expressions,
    dashboard_expressions,
    filled_in,
    panels,
    read_yaml,
    scaling_expressions,
)
from tests.deploy.loaded_server import loaded_server

EXPRESSIONS = {**dashboard_expressions(), **alert_expressions(), **scaling_expressions()}
OF_THE_SCRAPE = {"job": {"headrace"}, "instance": {"headrace:8000"}}
"""Labels that Prometheus adds."""

NOT_UNDER_THIS_LOAD = {("headrace_http_requests_total", "status", "500")}

WITH_ADAPTERS_ONLY = {
    "headrace_lora_requests_running",
    "headrace_lora_requests_waiting",
    "vllm:lora_requests_info",
}
"""Of a server that serves adapters."""

Labels = dict[str, set[str]]
"""The values that each label of a metric was seen with."""


def of_several_ranks() -> str:
    """What this server, which is one rank, would tell besides."""
    registry = CollectorRegistry()
    registry.register(RankMetrics(lambda: [RankFacts(rank, *(0,) * 7, stage=1 - rank) for rank in (0, 1)]))
    lines = generate_latest(registry).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "headrace_ranks" not in line)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Labels]:
    with loaded_server(tmp_path_factory.mktemp("model") / "dummy") as server:
        text = httpx.get(f"{server.url}/metrics").text + of_several_ranks()
    metrics: dict[str, Labels] = defaultdict(lambda: defaultdict(set))
    metrics["up"] = dict(OF_THE_SCRAPE)
    num_series = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            num_series += 1
            for label, value in {**sample.labels, **{k: min(v) for k, v in OF_THE_SCRAPE.items()}}.items():
                metrics[sample.name][label].add(value)
    assert num_series < 1000
    return dict(metrics)


def selectors(node: promql_parser.Expr) -> Iterator[promql_parser.VectorSelector]:
    found: list[promql_parser.Expr] = []
    promql_parser.walk(node, lambda part: found.append(part))
    return (part for part in found if isinstance(part, promql_parser.VectorSelector))


def grouped_by(node: promql_parser.Expr) -> Iterator[tuple[str, set[str]]]:
    """Each metric, and the labels by which it is summed up."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(node, lambda part: found.append(part))
    for part in found:
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            for selector in selectors(part.expr):
                yield selector.name, set(part.modifier.labels)


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_there_are(where: str, exported: dict[str, Labels]):
    expression = promql_parser.parse(filled_in(EXPRESSIONS[where]))
    named = [*selectors(expression)]
    assert named
    for selector in named:
        assert selector.name in exported, f"there is no {selector.name}"
        for matcher in selector.matchers.matchers:
            seen = exported[selector.name].get(matcher.name)
            assert seen, f"{selector.name} has no label {matcher.name}"
            if matcher.op == promql_parser.MatchOp.Equal:
                fact = (selector.name, matcher.name, matcher.value)
                assert matcher.value in seen or fact in NOT_UNDER_THIS_LOAD, f"{fact} was not seen, only {seen}"
    for name, labels in grouped_by(expression):
        assert labels <= exported[name].keys(), f"{name} has no {labels - exported[name].keys()}"


def test_the_reference_names_what_a_server_exports_and_nothing_else(exported: dict[str, Labels]):
    written = re.findall(r"^\| `([\w:]+)` \|", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    families = {name if name in written else re.sub("_(bucket|sum|count)$", "", name) for name in exported}
    assert families - {"up"} == {*written} - WITH_ADAPTERS_ONLY


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_uses_the_source_that_is_provisioned(dashboard):
    (source,) = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    for panel in panels(dashboard):
        targets = panel["targets"]
        assert {ask["datasource"]["uid"] for ask in [panel, *targets]} == {source["uid"]}
        assert len({target["refId"] for target in targets}) == len(targets)
        assert panel["description"].endswith(".")
    interval = read_yaml(PROMETHEUS)["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_have_an_id_of_their_own_and_do_not_overlap(dashboard):
    shown = panels(dashboard)
    assert len({panel["id"] for panel in shown}) == len(shown)
    places = sorted((p["gridPos"]["y"], p["gridPos"]["x"], p["gridPos"]["w"], p["gridPos"]["h"]) for p in shown)
    for (y, x, width, height), (next_y, next_x, _, _) in pairwise(places):
        assert x + width <= 24
        assert next_x >= x + width if next_y == y else next_y >= y + height


WATCHED = [
    *("batch_size", "kv_blocks_used", "normalized_latency_seconds", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "queue_seconds", "requests_running", "requests_waiting", "requests_swapped"),
    *("tokens_total", "preemptions_total", "swapped_bytes_total", "prefix_cache_hit_tokens_total"),
    *("iteration_seconds", "iteration_batch_size", "event_loop_lag_seconds", "http_requests_total"),
    *("batches", "batch_lines_left", "batch_lines_total"),
    *("rank_memory_bytes", "rank_exchange_seconds", "rank_control_latency_seconds", "rank_waiting_seconds"),
    "stage_compute_seconds_total",
]


@pytest.mark.parametrize("name", WATCHED)
def test_what_an_operator_asks_for_is_on_a_dashboard(name: str):
    assert any(f"headrace_{name}" in expression for expression in dashboard_expressions().values())
