"""The image's HEALTHCHECK, run for a server of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.deployment import DEPLOY, health_check_command


def check_health(url: str) -> int:
    """The exit status of the file that the image runs, told of the server as in the image."""
    interpreter, file = health_check_command()
    assert interpreter == "python"
    environment = {**os.environ, "HEADRACE_HOST": "0.0.0.0", "HEADRACE_PORT": url.rpartition(":")[2]}
    environment |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # not on the way to oneself
    return subprocess.run([sys.executable, DEPLOY / Path(file).name], env=environment, timeout=30).returncode
