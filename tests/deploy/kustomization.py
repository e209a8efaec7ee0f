"""What `kubectl apply -k` would send, by the little of kustomize that is used: resources, components, JSON patches.

kubectl's own, where it is older than components, cannot read them; test_kubernetes.py lets it read the base.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.deployment import KUBERNETES, read_yaml

COMPONENTS = sorted(folder.name for folder in (KUBERNETES / "components").iterdir())
KNOWN_KEYS = {"apiVersion", "kind", "resources", "components", "patches", "images"}


def rendered(components: Sequence[str]) -> dict[str, Any]:
    """Objects by their kind, of the base with these components, in order."""
    found: dict[str, Any] = {}
    _add(KUBERNETES / "base", found)
    for name in components:
        _add(KUBERNETES / "components" / name, found)
    return found


def _add(folder: Path, found: dict[str, Any]) -> None:
    kustomization = read_yaml(folder / "kustomization.yaml")
    assert kustomization.keys() <= KNOWN_KEYS
    for name in kustomization.get("resources", ()):
        for made in yaml.safe_load_all((folder / name).read_text()):
            assert made["kind"] not in found
            found[made["kind"]] = made
    for patch in kustomization.get("patches", ()):
        target = found[patch["target"]["kind"]]
        assert target["metadata"]["name"] == patch["target"]["name"]
        for step in yaml.safe_load(patch["patch"]):
            _apply(target, step)


def _apply(document: Any, step: dict[str, Any]) -> None:
    """An `add` or a `replace` of RFC 6902. What is replaced has to be there."""
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    for part in way:
        document = document[int(part) if isinstance(document, list) else part]
    if step["op"] == "add" and last == "-":
        document.append(copy.deepcopy(step["value"]))
        return
    key = int(last) if isinstance(document, list) else last
    if step["op"] == "replace":
        assert document[key] is not None
    else:
        assert step["op"] == "add" and key not in document
    document[key] = copy.deepcopy(step["value"])
