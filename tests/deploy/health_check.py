"""The image's HEALTHCHECK, run for a server of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.deployment import DEPLOY, health_check_command


def check_health(url: str, settings: Mapping[str, str] | None = None) -> int:
    """The exit status of the file that the image runs, told of the server as in the image. settings: more of them."""
    interpreter, file = health_check_command()
    assert interpreter == "python"
    port = "1" if url.startswith("unix:") else url.rpartition(":")[2]
    environment = {**os.environ, "HEADRACE_HOST": "0.0.0.0", "HEADRACE_PORT": port}
    environment |= {**(settings or {}), "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # not on the way to oneself
    return subprocess.run([sys.executable, DEPLOY / Path(file).name], env=environment, timeout=30).returncode
