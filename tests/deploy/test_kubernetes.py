"""The manifests agree with each other, with the image and with the settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.serving_state import ServingState
from service.config import ApiConfig
from service.engine.async_engine import STUCK_AFTER_S
from service.http.server import LAST_WORDS_S
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.recorder import Recorder
from service.settings.reader import read_settings
from service.settings.settings import Settings
from service.storage.storage import Storage
from tests.deploy.deployment import KUBERNETES, PROMETHEUS, environment_of_the_image, read_yaml
from tests.deploy.kustomization import COMPONENTS, rendered

ALL = rendered([name for name in COMPONENTS if name != "models-image"])
"""Everything that goes together."""

OTHERS_KINDS = {"PodMonitor", "ScaledObject", "InferencePool"}
"""Defined by operators and extensions: a plain cluster knows none of them."""


def manifests() -> dict[str, Any]:
    return ALL


def pod(*components: str) -> dict[str, Any]:
    return rendered(components)["Deployment"]["spec"]["template"]["spec"]


def container(*components: str) -> dict[str, Any]:
    (only,) = pod(*components)["containers"]
    return only


def test_every_manifest_is_named():
    for kustomization in KUBERNETES.rglob("kustomization.yaml"):
        found = {f.name for f in kustomization.parent.glob("*.yaml")} - {"kustomization.yaml", "adapter-rule.yaml"}
        named = read_yaml(kustomization).get("resources", [])
        assert {name for name in named if name.endswith(".yaml") and "/" not in name} == found, kustomization
    top = (KUBERNETES / "kustomization.yaml").read_text()
    assert sorted(re.findall(r"components/([\w-]+) #", top)) == COMPONENTS, "each with a word on what it is"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kubectl_reads_the_base():
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / "base"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {made["kind"]: made for made in yaml.safe_load_all(done.stdout)} == rendered([])


@pytest.mark.parametrize("component", [None, *COMPONENTS])
def test_kubernetes_schemas_know_every_field(component: str | None):
    validate = pytest.importorskip("kubernetes_validate")
    before = ["gpu"] if component == "several-gpus" else []
    for kind, made in rendered([] if component is None else [*before, component]).items():
        if kind not in OTHERS_KINDS:
            validate.validate(made, validate.latest_version(), strict=True)


def test_a_plain_cluster_knows_every_kind_of_the_base_and_has_no_gpu():
    assert not OTHERS_KINDS & rendered([]).keys()
    assert "nvidia" not in str(rendered([]))
    assert container("gpu")["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize("components", [(), tuple(name for name in COMPONENTS if name != "models-image")])
def test_a_pod_may_do_nothing_that_it_need_not(components: tuple[str, ...]):
    rights, of_pod = container(*components)["securityContext"], pod(*components)
    assert rights == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert of_pod["securityContext"]["runAsNonRoot"] is True
    assert of_pod["automountServiceAccountToken"] is False
    assert ALL["ServiceAccount"]["automountServiceAccountToken"] is False
    assert of_pod["serviceAccountName"] == ALL["ServiceAccount"]["metadata"]["name"]
    resources = container(*components)["resources"]
    assert {"memory", "cpu"} <= resources["requests"].keys()
    assert "memory" in resources["limits"]


def test_the_network_policy_lets_in_to_the_port_and_out_to_names_and_https_only():
    policy = ALL["NetworkPolicy"]["spec"]
    (inwards,) = policy["ingress"]
    assert [entry["port"] for entry in inwards["ports"]] == [container()["ports"][0]["containerPort"]]
    assert {entry["port"] for rule in policy["egress"] for entry in rule["ports"]} == {53, 443}
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["podSelector"]["matchLabels"] == ALL["Service"]["spec"]["selector"]


@pytest.mark.parametrize("component", ["models-claim", "models-image"])
def test_a_models_volume_is_the_one_that_is_mounted_and_what_is_served_lies_on_it(component: str):
    (volume,) = [volume for volume in pod(component)["volumes"] if volume["name"] == "models"]
    assert volume.keys() & {"persistentVolumeClaim", "image"}
    (mount,) = [mount for mount in container(component)["volumeMounts"] if mount["name"] == "models"]
    (served,) = container(component)["args"]
    assert served.startswith(mount["mountPath"])
    if component == "models-claim":
        assert volume["persistentVolumeClaim"]["claimName"] == ALL["PersistentVolumeClaim"]["metadata"]["name"]


def test_the_autoscaler_asks_for_what_the_adapters_rule_and_the_service_have():
    spec = ALL["HorizontalPodAutoscaler"]["spec"]
    asked = {metric["pods"]["metric"]["name"] for metric in spec["metrics"]}
    (rule,) = read_yaml(KUBERNETES / "components/hpa/adapter-rule.yaml")["rules"]
    assert asked == set(re.search(r'__name__=~"([^"]*)"', rule["seriesQuery"])[1].split("|"))
    registry = CollectorRegistry()
    registry.register(LiveGauges(lambda: None))
    assert asked <= {metric.name for metric in registry.collect()}
    assert "headrace_requests_waiting" in asked
    assert spec["scaleTargetRef"]["name"] == ALL["Deployment"]["metadata"]["name"]


def test_several_gpus_are_as_many_as_there_are_ranks(monkeypatch: pytest.MonkeyPatch):
    served, of_pod = container("gpu", "several-gpus"), pod("gpu", "several-gpus")
    for variable in served["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    assert read_settings([]).tensor_parallel_size == served["resources"]["limits"]["nvidia.com/gpu"] == 2
    (mount,) = [mount for mount in served["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    (volume,) = [volume for volume in of_pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"


def of_several_hosts() -> list[dict[str, Any]]:
    folder = KUBERNETES / "several-hosts"
    return [read_yaml(folder / name) for name in read_yaml(folder / "kustomization.yaml")["resources"]]


def test_several_hosts_are_a_pod_each_with_its_number_and_the_heads_name(monkeypatch: pytest.MonkeyPatch):
    made = of_several_hosts()
    hosts = next(each for each in made if each["kind"] == "StatefulSet")
    names = next(each for each in made if each["metadata"]["name"] == hosts["spec"]["serviceName"])
    (served,) = hosts["spec"]["template"]["spec"]["containers"]
    told = {variable["name"]: variable for variable in served["env"]}
    assert "pod-index" in told["HEADRACE_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert told["HEADRACE_NODE_SECRET"]["valueFrom"]["secretKeyRef"]["key"] == "node-secret"
    for name, variable in told.items():
        monkeypatch.setenv(name, variable.get("value", {"HEADRACE_NODE_RANK": "1"}.get(name, "s" * 16)))
    node, parallel = read_settings([]).node_config(), read_settings([]).parallel_config()
    assert node is not None
    assert node.address == f"{hosts['metadata']['name']}-0.{names['metadata']['name']}"
    assert hosts["spec"]["replicas"] == node.num_nodes == parallel.num_nodes
    assert parallel.num_ranks == node.num_nodes * served["resources"]["limits"]["nvidia.com/gpu"]
    assert hosts["spec"]["podManagementPolicy"] == "Parallel", "the head waits for the others"
    assert names["spec"]["publishNotReadyAddresses"] is True
    assert names["spec"]["clusterIP"] == "None"


def test_several_hosts_may_do_no_more_than_a_replica_and_speak_to_each_other():
    made = {each["kind"]: each for each in of_several_hosts()}
    of_pod = made["StatefulSet"]["spec"]["template"]["spec"]
    plain = pod()
    assert of_pod["containers"][0]["securityContext"] == plain["containers"][0]["securityContext"]
    assert {of_pod[key] == plain[key] for key in plain if key not in ("containers", "volumes")} == {True}
    labels = made["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    policy = made["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels == made["StatefulSet"]["spec"]["selector"]["matchLabels"]
    peers = [rule["from"] for rule in policy["ingress"] if "from" in rule]
    peers += [rule["to"] for rule in policy["egress"] if "to" in rule]
    assert peers == [[{"podSelector": {"matchLabels": labels}}]] * 2


def test_kubernetes_schemas_know_every_field_of_several_hosts():
    validate = pytest.importorskip("kubernetes_validate")
    for made in of_several_hosts():
        validate.validate(made, validate.latest_version(), strict=True)


def test_the_gateways_pool_is_these_pods_and_their_port():
    spec = ALL["InferencePool"]["spec"]
    assert spec["selector"]["matchLabels"] == ALL["Service"]["spec"]["selector"]
    assert spec["targetPorts"] == [{"number": container()["ports"][0]["containerPort"]}]
    assert spec["endpointPickerRef"].keys() >= {"name", "port"}


def test_all_speak_of_the_same_pods():
    of = {kind: manifest["spec"] for kind, manifest in manifests().items() if "spec" in manifest}
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
    assert mounts.keys() == {"/models", image["TRITON_CACHE_DIR"], image["HF_HOME"], image["HEADRACE_DATA_DIR"], "/tmp"}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod()["volumes"]}
    assert [path for path, mount in mounts.items() if mount.get("readOnly")] == ["/models"]
