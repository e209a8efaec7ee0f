"""The manifests agree with each other, with the image and with the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.serving_state import ServingState
from service.config import ApiConfig
from service.engine.async_engine import STUCK_AFTER_S
from service.http.server import LAST_WORDS_S
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.settings.settings import Settings
from service.storage.storage import Storage
from tests.deploy.deployment import KUBERNETES, PROMETHEUS, environment_of_the_image, read_yaml


def manifests() -> dict[str, Any]:
    """By kind, those that the kustomization names."""
    named = read_yaml(KUBERNETES / "kustomization.yaml")["resources"]
    found = [doc for name in named for doc in yaml.safe_load_all((KUBERNETES / name).read_text())]
    return {doc["kind"]: doc for doc in found}


def pod() -> dict[str, Any]:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return only


def test_every_manifest_is_named():
    named = read_yaml(KUBERNETES / "kustomization.yaml")["resources"]
    assert sorted(named) == sorted(f.name for f in KUBERNETES.glob("*.yaml") if f.name != "kustomization.yaml")


def test_all_speak_of_the_same_pods():
    of = {kind: manifest["spec"] for kind, manifest in manifests().items()}
    labels = of["Deployment"]["template"]["metadata"]["labels"]
    assert of["Deployment"]["selector"]["matchLabels"] == of["Service"]["selector"] == labels
    assert of["PodDisruptionBudget"]["selector"]["matchLabels"] == of["PodMonitor"]["selector"]["matchLabels"] == labels
    assert of["ScaledObject"]["scaleTargetRef"]["name"] == manifests()["Deployment"]["metadata"]["name"]
    assert "replicas" not in of["Deployment"], "they are the autoscaler's"


def test_the_job_has_the_name_that_the_alerts_know():
    label = manifests()["PodMonitor"]["spec"]["jobLabel"]
    labels = manifests()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    (job,) = read_yaml(PROMETHEUS)["scrape_configs"]
    assert labels[label] == job["job_name"]


def test_ports_are_the_images():
    (port,) = container()["ports"]
    assert port["containerPort"] == int(environment_of_the_image()["HEADRACE_PORT"])
    (of_service,) = manifests()["Service"]["spec"]["ports"]
    (endpoint,) = manifests()["PodMonitor"]["spec"]["podMetricsEndpoints"]
    probes = [container()[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")]
    assert {of_service["targetPort"], endpoint["port"], *probes} == {port["name"]}


def test_probes_ask_what_is_answered():
    registry = CollectorRegistry()
    app = create_app(
        ServingState(), ApiConfig(("a",)), Recorder(Instruments(registry)), registry, Storage(Path("unused"), 0)
    )
    paths = {kind: container()[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    (endpoint,) = manifests()["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert {*paths.values(), endpoint["path"]} <= {route.path for route in app.routes}


def test_the_grace_period_is_longer_than_the_longest_end():
    sleep_s = float(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    longest_s = sleep_s + Settings.model_fields["shutdown_timeout"].default + STUCK_AFTER_S + LAST_WORDS_S
    assert pod()["terminationGracePeriodSeconds"] > longest_s


def test_it_runs_as_the_images_user_with_volumes_that_it_may_write():
    assert pod()["securityContext"]["runAsUser"] == pod()["securityContext"]["fsGroup"] == 1000
    image = environment_of_the_image()
    mounts = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    assert mounts.keys() == {"/models", image["TRITON_CACHE_DIR"], image["HF_HOME"], image["HEADRACE_DATA_DIR"]}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod()["volumes"]}
    assert [path for path, mount in mounts.items() if mount.get("readOnly")] == ["/models"]
