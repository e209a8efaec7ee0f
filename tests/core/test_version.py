from __future__ import annotations

import tomllib
from pathlib import Path

from service.core.version import distribution_version


def test_the_installed_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert distribution_version() == project["version"]
