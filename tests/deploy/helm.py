"""The chart as Helm itself lints and renders it, by its library (helm-python-sdk), in a process of its own.

`python -m tests.deploy.helm`: reads a JSON list of values, prints a JSON list of what becomes of each. The library is
Go's, whose runtime takes the process's signals: no company for pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import yaml

from tests.deploy.deployment import HELM_CHART


def rendered_by_helm(values: list[dict[str, Any]], release: str = "headrace") -> list[dict[str, Any]]:
    """Of each: `objects` by their kind and `messages` of a strict lint; or the `error`."""
    told = json.dumps({"values": values, "release": release})
    command = [sys.executable, "-m", "tests.deploy.helm"]
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def _of(values: dict[str, Any], release: str) -> dict[str, Any]:
    import helm_python

    chart = helm_python.Chart.load(HELM_CHART)
    linted = helm_python.lint(HELM_CHART, values, strict=True)
    try:
        chart.validate_schema(values)
        files = chart.render(values, name=release, namespace="default", is_install=True)
    except helm_python.HelmError as fault:
        return {"error": str(fault)}
    made = [each for name, text in files.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text) if each]
    objects = {each["kind"]: each for each in made}
    assert len(objects) == len(made), "one of each kind"
    return {"objects": objects, "messages": linted["messages"], "notes": files["headrace/templates/NOTES.txt"]}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps([_of(values, asked["release"]) for values in asked["values"]]))
