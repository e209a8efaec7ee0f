"""docker-compose.yml is valid, and agrees with the settings, the image, Prometheus and Grafana."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.engine.async_engine import STUCK_AFTER_S
from service.http.server import LAST_WORDS_S
from service.settings.reader import read_settings
from service.settings.settings import Settings
from tests.deploy.deployment import COMPOSE, DEPLOY, PROMETHEUS, ROOT, environment_of_the_image, read_yaml, services

SERVERS = ("headrace", "headrace-cpu", "headrace-0", "headrace-1")
REPLICAS = ("headrace-0", "headrace-1")
ROUTERS = ("router", "prefix-router")
OPEN = ("headrace", "headrace-cpu", *ROUTERS)
ENV_EXAMPLE = (DEPLOY / "env.example").read_text()
DOT_ENV = dict(re.findall(r"^#? ?([A-Z_]+)=(.*)$", (ROOT / ".env").read_text(), re.MULTILINE))


def volumes_of(service: dict[str, Any]) -> dict[str, str]:
    """Where it is seen inside -> what it is outside."""
    mounts = [entry.removesuffix(":ro").rpartition(":") for entry in service["volumes"]]
    return {inside: outside for outside, _, inside in mounts}


def port_of(service: dict[str, Any]) -> int:
    """Inside, which is the same as outside."""
    (entry,) = service["ports"]
    _, outside, inside = entry.rsplit(":", 2)
    assert outside == inside
    return int(inside)


def test_is_what_the_compose_specification_allows():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def devices_of(service: dict[str, Any]) -> list[dict[str, Any]]:
    return service["deploy"]["resources"]["reservations"]["devices"]


@pytest.mark.parametrize(
    ("profile", "started"),
    [
        ("gpu", {"headrace"}),
        ("cpu", {"headrace-cpu"}),
        ("scale", {*REPLICAS, "router"}),
        ("prefix", {*REPLICAS, "prefix-router"}),
    ],
)
def test_a_profile_starts_what_it_is_for_and_what_watches_it(profile: str, started: set[str]):
    names = {name for name, service in services().items() if profile in service.get("profiles", [profile])}
    assert names == started | {"prometheus", "grafana"}
    for server in started - {*ROUTERS}:
        assert services()[server]["build"]["target"] == services()[server]["image"].partition(":")[2]
    assert len([name for name in started if "ports" in services()[name]]) == 1, "one of them is open to clients"


def test_each_replica_has_a_gpu_of_its_own():
    devices = [device for name in REPLICAS for device in devices_of(services()[name])]
    assert [device["device_ids"] for device in devices] == [["0"], ["1"]]
    assert all(device["capabilities"] == ["gpu"] for device in devices)


def test_the_router_finds_the_replicas_and_asks_whether_they_are_ready():
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    assert volumes_of(services()["router"]) == {"/usr/local/etc/haproxy": "./deploy/haproxy"}
    (most, host, port) = re.search(r"server-template \w+ (\d+) ([\w-]+):(\d+) check", text).groups()
    assert int(most) >= len(REPLICAS)
    assert all(services()[name]["networks"]["default"]["aliases"] == [host] for name in REPLICAS)
    assert int(port) == int(services()[REPLICAS[0]]["environment"]["HEADRACE_PORT"])
    assert f"bind :{port_of(services()['router'])}\n" in text
    assert "option httpchk GET /ready\n" in text
    assert "balance leastconn\n" in text


def test_the_router_of_prefixes_knows_each_replica_and_asks_whether_it_is_ready():
    command = services()["prefix-router"]["command"]
    port = services()[REPLICAS[0]]["environment"]["HEADRACE_PORT"]
    assert command[command.index("--worker-urls") + 1 :] == [f"http://{name}:{port}" for name in REPLICAS]
    flags = dict(flag.removeprefix("--").split("=") for flag in command if "=" in flag)
    assert int(flags["port"]) == port_of(services()["prefix-router"])
    assert (flags["policy"], flags["health-check-endpoint"]) == ("cache_aware", "/ready")
    delay_s = min(float(services()[name]["environment"]["HEADRACE_SHUTDOWN_DELAY"]) for name in REPLICAS)
    assert delay_s > 2 * int(flags["health-check-interval-secs"]), "it hears of a replica's end in time"
    assert (ROOT / services()["prefix-router"]["build"]["context"] / "Dockerfile").is_file()


def test_without_a_profile_it_is_the_gpu():
    assert DOT_ENV["COMPOSE_PROFILES"] == "gpu"
    (device,) = devices_of(services()["headrace"])
    assert device["capabilities"] == ["gpu"]
    assert "deploy" not in services()["headrace-cpu"]


def test_prometheus_finds_every_server_where_it_listens():
    (job,) = read_yaml(PROMETHEUS)["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    aliases = {name: services()[name].get("networks", {"default": {"aliases": [name]}}) for name in SERVERS}
    assert all(networks["default"]["aliases"] == found["names"] for networks in aliases.values())
    ports = {port_of(services()[name]) for name in OPEN}
    ports |= {int(services()[name]["environment"]["HEADRACE_PORT"]) for name in SERVERS}
    ports |= {int(environment_of_the_image()["HEADRACE_PORT"]), Settings.model_fields["port"].default}
    assert ports == {found["port"]}


def test_grafana_finds_prometheus():
    (source,) = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == f"http://prometheus:{port_of(services()['prometheus'])}"


def test_nobody_can_log_in_to_grafana_by_a_password_that_is_known():
    environment = services()["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert not [name for name in environment if "PASSWORD" in name]


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_may_write_to_its_volumes_only(name: str):
    service = services()[name]
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_grafana_finds_its_files():
    grafana = services()["grafana"]
    mounted = volumes_of(grafana)
    (provider,) = read_yaml(DEPLOY / "grafana/provisioning/dashboards/headrace.yml")["providers"]
    folder = ROOT / mounted[provider["options"]["path"]]
    assert [*folder.glob("*.json")]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (folder / home.name).is_file()
    assert str(home.parent) == provider["options"]["path"]
    provisioning = ROOT / mounted["/etc/grafana/provisioning"]
    assert {file.parent.name for file in provisioning.rglob("*.yml")} == {"datasources", "dashboards"}


def test_prometheus_finds_its_files():
    prometheus = services()["prometheus"]
    (flag,) = [word for word in prometheus["command"] if word.startswith("--config.file=")]
    inside = Path(flag.partition("=")[2])
    folder = ROOT / volumes_of(prometheus)[str(inside.parent)]
    assert (folder / inside.name).is_file()
    assert all((folder / name).is_file() for name in read_yaml(PROMETHEUS)["rule_files"])


@pytest.mark.parametrize("name", SERVERS)
def test_caches_models_and_data_lie_on_volumes(name: str):
    mounted, image = volumes_of(services()[name]), environment_of_the_image()
    assert mounted.keys() == {image["TRITON_CACHE_DIR"], image["HF_HOME"], image["HEADRACE_DATA_DIR"], "/models"}
    assert "/models:ro" in " ".join(services()[name]["volumes"])
    declared = read_yaml(COMPOSE)["volumes"]
    assert {re.sub(r"\$\{\w+:-(.*)}", r"\1", outside) for outside in mounted.values()} <= declared.keys()


def test_replicas_share_no_data():
    data = environment_of_the_image()["HEADRACE_DATA_DIR"]
    assert len({volumes_of(services()[name])[data] for name in REPLICAS}) == len(REPLICAS)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_given_the_time_that_its_longest_end_takes(name: str):
    grace_s = float(re.fullmatch(r"(\d+)s", services()[name]["stop_grace_period"])[1])
    delay_s = float(services()[name]["environment"].get("HEADRACE_SHUTDOWN_DELAY", 0))
    assert grace_s > delay_s + Settings.model_fields["shutdown_timeout"].default + STUCK_AFTER_S + LAST_WORDS_S


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_may_open_as_many_connections_as_it_takes(name: str):
    assert services()[name]["ulimits"]["nofile"] > 2 * Settings.model_fields["max_connections"].default


@pytest.mark.parametrize("name", OPEN)
def test_ports_are_open_to_this_machine_only_unless_it_is_said(name: str):
    for service in (services()[name], services()["prometheus"], services()["grafana"]):
        assert all(entry.startswith("${BIND_ADDRESS:-127.0.0.1}:") for entry in service["ports"])


@pytest.mark.parametrize("name", SERVERS)
def test_what_compose_sets_are_settings(name: str, monkeypatch: pytest.MonkeyPatch):
    for variable, value in services()[name]["environment"].items():
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-([^}]*)}", r"\1", value))
    settings = read_settings([])
    assert (settings.host, settings.enable_finetuning) == ("0.0.0.0", True)


def test_every_variable_of_the_compose_file_is_told_of_and_has_a_default():
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)}", COMPOSE.read_text()))
    assert used.keys() == DOT_ENV.keys() - {"COMPOSE_PROFILES"}
    assert len(re.findall(r"\$\{", COMPOSE.read_text())) == len(re.findall(r"\$\{\w+:-[^}]+}", COMPOSE.read_text()))
    assert not any(variable.startswith("HEADRACE_") for variable in used), "those are the service's own"


def test_env_example_has_every_setting_and_its_default(monkeypatch: pytest.MonkeyPatch):
    written = dict(re.findall(r"^#(HEADRACE_\w+)=(.*)$", ENV_EXAMPLE, re.MULTILINE))
    assert [*written] == [f"HEADRACE_{name.upper()}" for name in Settings.model_fields]
    for variable, value in written.items():
        if value:
            monkeypatch.setenv(variable, value)
    assert read_settings([]).non_default() == {}
    without = {name for name, field in Settings.model_fields.items() if field.default in (None, ())}
    assert {variable.removeprefix("HEADRACE_").lower() for variable, value in written.items() if not value} == without


def test_settings_of_the_user_have_one_place_that_git_leaves_alone():
    for name in SERVERS:
        (entry,) = services()[name]["env_file"]
        assert entry == {"path": "deploy/headrace.env", "required": False}
    assert "deploy/headrace.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "cp deploy/env.example deploy/headrace.env" in ENV_EXAMPLE
