from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import ConfigError
from service.settings.reader import read_settings
from service.settings.settings import Settings


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"HEADRACE_{name.upper()}", raising=False)


def test_flag_before_environment_before_file_before_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "headrace.yaml"
    file.write_text("port: 1\nhost: 0.0.0.1\nblock_size: 32\nseed: 5\n")
    monkeypatch.setenv("HEADRACE_PORT", "2")
    monkeypatch.setenv("HEADRACE_HOST", "0.0.0.2")
    settings = read_settings(["--config", str(file), "--port", "3"])
    assert (settings.port, settings.host, settings.block_size, settings.seed) == (3, "0.0.0.2", 32, 5)
    assert settings.max_num_seqs is None


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "headrace.yaml"
    file.write_text("model: some/model\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    assert read_settings([]).model == "some/model"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "8x"], r"port: .*integer.*'8x'"),
        (["--block-size", "257"], r"block-size: .*less than or equal to 256.*'257'"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "64"], r"max-num-batched-tokens \(64\) must exceed"),
        (["--kv-cache-memory", "lots"], r"kv-cache-memory: .*'lots'"),
        (["--config", "nowhere.yaml"], r"config: there is no file nowhere.yaml"),
        (["--max-model-len", "1"], r"max-model-len: .*greater than or equal to 2"),
        (["--stream-interval-ms", "inf"], r"stream-interval-ms: .*finite"),
        ([""], r"model: .*at least 1 character"),
        (["--host", ""], r"host: .*at least 1 character"),
        (["--served-model-name", ","], r"served-model-name: is empty"),
        (["--port"], r"argument --port: expected one argument"),
        (["one", "two"], r"unrecognized arguments: two"),
    ],
)
def test_a_bad_value_names_the_setting_and_the_reason(arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        read_settings(arguments)


def test_every_bad_value_is_named_at_once():
    with pytest.raises(ConfigError, match=r"port: .*; watermark: "):
        read_settings(["--port", "-1", "--watermark", "2"])


def test_an_unknown_setting_is_refused_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "headrace.yaml"
    file.write_text("prot: 1\n")
    with pytest.raises(ConfigError, match="config: prot is not a setting; did you mean port"):
        read_settings(["--config", str(file)])
    with pytest.raises(ConfigError, match="--prot is not a setting; did you mean --port"):
        read_settings(["--prot", "1"])
    monkeypatch.setenv("HEADRACE_PROT", "1")
    with pytest.raises(ConfigError, match="HEADRACE_PROT is not a setting; did you mean HEADRACE_PORT"):
        read_settings([])


def test_a_setting_that_is_no_json_is_named():
    for wrong in ("x", "[1]", "5"):
        with pytest.raises(ConfigError, match=r"^default-chat-template-kwargs: "):
            read_settings(["--default-chat-template-kwargs", wrong])


def test_the_model_as_a_flag_is_put_right():
    with pytest.raises(ConfigError, match="--model is not a setting: the model is given without a flag"):
        read_settings(["--model", "some/model"])


def test_help_speaks_of_values_and_not_of_python(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_settings(["--help"])
    shown = capsys.readouterr().out
    assert "usage: headrace serve [options] [MODEL]" in shown
    assert "--kv-cache-memory SIZE" in shown
    assert "--served-model-name A,B,..." in shown
    assert "(default: 4GiB)" in " ".join(shown.split())
    assert "(default: 8MiB)" in " ".join(shown.split())
    for python in ("tuple[", "dict[", "ByteSize", "FiniteFloat", "null", "()"):
        assert python not in shown


def test_a_flag_may_be_written_as_in_the_file():
    assert read_settings(["--max_num_seqs", "12", "--device=cpu"]).max_num_seqs == 12


def test_kubernetes_service_links_are_not_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
        "ROUTER_SERVICE_HOST": "10.0.0.2",
        "ROUTER_PORT": "tcp://10.0.0.2:80",
    }.items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    file = tmp_path / "headrace.yaml"
    file.write_text("port: 9000\n")
    assert read_settings([]).port == 8000
    assert read_settings(["--config", str(file)]).port == 9000
    monkeypatch.setenv("HEADRACE_PORT", "9001")
    assert read_settings([]).port == 9001


def test_a_bad_key_setting_does_not_print_the_key():
    with pytest.raises(ConfigError) as refusal:
        read_settings(["--api-key", "hidden", "--port", "x"])
    assert "hidden" not in str(refusal.value)
