"""The chart gives what deploy/kubernetes gives, linted and rendered by Helm itself."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from tests.deploy.deployment import HELM_CHART, read_yaml
from tests.deploy.helm import rendered_by_helm
from tests.deploy.kustomization import COMPONENTS, rendered

pytestmark = pytest.mark.skipif(find_spec("helm_python") is None, reason="helm_python, which is not imported here")

HELMS_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"}
LOWEST_WARNING = 2
"""Helm's severity."""
GPU = read_yaml(HELM_CHART / "values-gpu.yaml")
IMAGE = {"image": {"reference": "registry.example/models/my-model:1", "pullPolicy": "IfNotPresent"}}
SAME: dict[tuple[str, ...], dict[str, Any]] = {
    (): {},
    ("gpu",): GPU,
    ("gpu", "several-gpus"): {**GPU, "gpus": 2},
    ("models-claim",): {"models": {"claim": "100Gi"}, "args": ["/models/my-model"]},
    ("models-image",): {"models": {"volume": IMAGE}, "args": ["/models"]},
    ("pod-monitor",): {"podMonitor": True},
    ("keda",): {"autoscaling": {"by": "keda"}},
    ("hpa",): {"autoscaling": {"by": "hpa"}},
    ("inference-gateway",): {"inferencePool": "headrace-epp"},
}
"""Components of deploy/kubernetes, and the values that say the same."""
REFUSED: dict[str, dict[str, Any]] = {
    "gpu": {"gpu": 1},
    "tagg": {"image": {"tagg": "cpu"}},
    "by": {"autoscaling": {"by": "cpu"}},
    "memory": {"resources": {"limits": {"memory": None}}},
    "volume": {"models": {"volume": {"emptyDir": {}, "hostPath": {"path": "/models"}}}},
}


@cache
def by_helm() -> dict[tuple[str, ...], dict[str, Any]]:
    return dict(zip(SAME, rendered_by_helm([*SAME.values()]), strict=True))


def in_common(made: Any) -> Any:
    """Without what Helm adds, and the image's tag, which is said elsewhere in deploy/kubernetes."""
    if isinstance(made, list):
        return [in_common(each) for each in made]
    if not isinstance(made, dict):
        return made
    kept = {key: in_common(value) for key, value in made.items() if key not in HELMS_LABELS}
    if isinstance(kept.get("image"), str):
        kept["image"] = kept["image"].partition(":")[0]
    if kept.get("kind") == "Service":
        assert kept["spec"].pop("type") == "ClusterIP"
    return kept


def labelled(made: dict[str, Any]) -> dict[str, Any]:
    """With the label that all of the chart's objects have, and not all of the components'."""
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "headrace"}
    return made


@pytest.mark.parametrize("components", SAME, ids="-".join)
def test_the_same_objects_as_kustomize_gives(components: tuple[str, ...]):
    expected = {kind: labelled(made) for kind, made in rendered(components).items()}
    assert in_common(by_helm()[components]["objects"]) == expected


def test_every_component_has_its_values():
    assert {name for components in SAME for name in components} == {*COMPONENTS}


@pytest.mark.parametrize("components", SAME, ids="-".join)
def test_helm_warns_of_nothing_and_kubernetes_knows_every_field(components: tuple[str, ...]):
    validate = pytest.importorskip("kubernetes_validate")
    told = by_helm()[components]
    assert [each for each in told["messages"] if each["severity"] >= LOWEST_WARNING] == []
    for kind, made in told["objects"].items():
        if kind not in {"PodMonitor", "ScaledObject", "InferencePool"}:
            validate.validate(made, validate.latest_version(), strict=True)
    assert "kubectl -n default rollout status deployment/headrace" in told["notes"]


def test_a_wrong_value_is_named():
    for name, told in zip(REFUSED, rendered_by_helm([*REFUSED.values()]), strict=True):
        assert name in told["error"]


def test_two_releases_keep_apart_and_what_is_given_reaches_the_pod():
    given = {
        "replicas": 3,
        "env": [{"name": "HEADRACE_MAX_NUM_SEQS", "value": "64"}],
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "tolerations": [{"key": "mine", "operator": "Exists"}],
        "gpus": 2,
        "networkPolicy": False,
        "data": {"volume": {"persistentVolumeClaim": {"claimName": "jobs"}}},
    }
    (told,) = rendered_by_helm([given], release="other")
    objects = told["objects"]
    assert "NetworkPolicy" not in objects
    spec = objects["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 3
    assert [entry["name"] for entry in container["env"]] == ["HEADRACE_TENSOR_PARALLEL_SIZE", "HEADRACE_MAX_NUM_SEQS"]
    assert container["envFrom"] == given["envFrom"]
    assert [each["key"] for each in spec["template"]["spec"]["tolerations"]] == ["nvidia.com/gpu", "mine"]
    volumes = {volume.pop("name"): volume for volume in spec["template"]["spec"]["volumes"]}
    assert volumes["data"] == given["data"]["volume"]
    labels = spec["template"]["metadata"]["labels"]
    selectors = [
        spec["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert selectors == [labels] * 3
    assert labels["app.kubernetes.io/instance"] == "other" == spec["template"]["spec"]["serviceAccountName"]
