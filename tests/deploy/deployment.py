"""The files of the deployment, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
KUBERNETES = DEPLOY / "kubernetes"
HELM_CHART = DEPLOY / "helm" / "headrace"
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
ROUTER_DOCKERFILE = DEPLOY / "vllm-router" / "Dockerfile"


def read_yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def services() -> dict[str, Any]:
    return read_yaml(COMPOSE)["services"]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """Those that show something: all but the headings."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> dict[str, str]:
    """PromQL by where it stands."""
    return {
        f"{dashboard.stem}: {panel['title']} {panel['id']}{target['refId']}": target["expr"]
        for dashboard in DASHBOARDS
        for panel in panels(dashboard)
        for target in panel["targets"]
    }


def alert_expressions() -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for group in read_yaml(ALERTS)["groups"] for rule in group["rules"]}


def scaling_expressions() -> dict[str, str]:
    triggers = read_yaml(KUBERNETES / "components" / "keda" / "scaled-object.yaml")["spec"]["triggers"]
    return {f"autoscaling {i}": trigger["metadata"]["query"] for i, trigger in enumerate(triggers)}


def filled_in(expression: str) -> str:
    """With what Grafana puts in the place of its variables."""
    return expression.replace("$__rate_interval", "20s").replace("$instance", ".*")


def environment_of_the_image() -> dict[str, str]:
    """ENV of the Dockerfile, all stages together."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line.removeprefix("ENV ") for line in text.splitlines() if line.startswith("ENV ")]
    return dict(word.split("=", 1) for line in lines for word in line.split())


def health_check_command() -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("HEALTHCHECK")]
    return json.loads(line.split(" CMD ")[1])
