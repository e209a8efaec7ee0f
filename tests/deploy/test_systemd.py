"""The unit for systemd agrees with the settings, and gives the service no more than it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from service.engine.async_engine import STUCK_AFTER_S
from service.http.server import LAST_WORDS_S
from service.settings.settings import Settings
from tests.deploy.deployment import DEPLOY, environment_of_the_image

UNIT = DEPLOY / "systemd" / "headrace.service"


def service_section() -> dict[str, list[str]]:
    """Directive -> its values, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    section = UNIT.read_text().partition("[Service]")[2].partition("[Install]")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_finds_nothing_wrong(tmp_path: Path):
    there = tmp_path / "headrace.service"  # verify asks whether the command is there
    there.write_text(UNIT.read_text().replace("/opt/headrace/bin/headrace", "/bin/true"))
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    command = ["systemd-analyze", "verify", "--man=no", str(there)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert [line for line in done.stderr.splitlines() if "headrace.service" in line] == []


def test_it_has_the_time_that_its_longest_end_takes():
    longest_s = Settings.model_fields["shutdown_timeout"].default + STUCK_AFTER_S + LAST_WORDS_S
    (stop_s,) = service_section()["TimeoutStopSec"]
    assert float(stop_s) > longest_s


def test_it_may_open_as_many_files_as_it_has_connections():
    (files,) = service_section()["LimitNOFILE"]
    assert int(files) > 2 * Settings.model_fields["max_connections"].default


def test_what_it_writes_to_is_its_own():
    unit = service_section()
    environment = dict(entry.split("=", 1) for entry in unit["Environment"])
    image = environment_of_the_image()
    assert environment.keys() == {
        name for name in image if name.endswith(("_CACHE_DIR", "_DATA_DIR", "HF_HOME")) and "PIP" not in name
    }
    owned = (f"/var/lib/{unit['StateDirectory'][0]}", f"/var/cache/{unit['CacheDirectory'][0]}")
    assert all(path.startswith(owned) for path in environment.values())
    assert (unit["ProtectSystem"], unit["DynamicUser"]) == (["strict"], ["yes"])
    assert unit["CapabilityBoundingSet"] == [""]
