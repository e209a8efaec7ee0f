from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from service.config import NodeConfig, ParallelConfig
from service.errors import ConfigError
from service.settings.quickstart import QUICKSTART_MODEL, QUICKSTART_NAME
from service.settings.reader import read_settings
from service.settings.settings import Settings


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"HEADRACE_{name.upper()}", raising=False)


def test_defaults_of_the_template_are_json(tmp_path: Path):
    flag = ["--default-chat-template-kwargs", '{"enable_thinking": false, "n": 3}']
    assert read_settings(flag).api_config().default_chat_template_kwargs == {"enable_thinking": False, "n": 3}
    file = tmp_path / "headrace.yaml"
    file.write_text("default_chat_template_kwargs: {enable_thinking: false}\n")
    settings = read_settings(["--config", str(file)])
    assert settings.default_chat_template_kwargs == {"enable_thinking": False}
    file.write_text("default_chat_template_kwargs: {a: 1, a: 2}\n")
    with pytest.raises(ConfigError, match="config: a is given twice"):
        read_settings(["--config", str(file)])


def test_a_key_without_a_certificate_is_refused():
    with pytest.raises(ConfigError, match="ssl-keyfile needs ssl-certfile"):
        read_settings(["--ssl-keyfile", "key.pem"])


@pytest.mark.parametrize("keys", ["", ",", "name:", "good,name:"])
def test_an_empty_key_neither_opens_the_service_nor_is_one(keys: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"api-key: (is empty|an entry has no key)"):
        read_settings(["--api-key", keys])
    monkeypatch.setenv("HEADRACE_API_KEY", keys)
    with pytest.raises(ConfigError, match=r"api-key: (is empty|an entry has no key)"):
        read_settings([])


def test_lists_are_comma_separated_and_sizes_have_units():
    settings = read_settings(["some/model", "--api-key", "one, two", "--kv-cache-memory", "2GiB"])
    assert settings.api_key == ("one", "two")
    assert settings.cache_config().memory_bytes == 2 * 2**30


def test_what_is_printed_at_start_hides_keys():
    settings = read_settings(["--api-key", "hidden", "--port", "9"])
    assert settings.non_default() == {"api_key": "***", "port": "9"}


def test_without_a_model_the_quickstart_model_is_served():
    settings = read_settings([])
    assert settings.model_source().model == str(QUICKSTART_MODEL)
    assert settings.api_config().served_model_names == (QUICKSTART_NAME,)


def test_a_folders_path_is_not_told_to_clients(tmp_path: Path):
    folder = tmp_path / "some-model"
    folder.mkdir()
    assert read_settings([f"{folder}/"]).api_config().served_model_names == ("some-model",)


def test_a_folders_path_is_an_alias_unless_names_are_set(tmp_path: Path):
    assert read_settings([f"{tmp_path}/"]).api_config().model_aliases == (f"{tmp_path}/", str(tmp_path))
    assert read_settings([str(tmp_path), "--served-model-name", "a"]).api_config().model_aliases == ()
    assert read_settings(["org/model"]).api_config().model_aliases == ()


def test_served_names():
    assert read_settings(["org/model"]).api_config().served_model_names == ("org/model",)
    assert read_settings(["org/model", "--served-model-name", "a,b"]).api_config().served_model_names == ("a", "b")


def test_what_belongs_to_the_http_surface_arrives_there():
    settings = read_settings(
        ["--tool-call-parser", "hermes", "--reasoning-parser", "none", "--strict-params", "--max-connections", "7"]
    )
    api = settings.api_config()
    assert (api.tool_call_parser, api.reasoning_parser, api.strict_params) == ("hermes", "none", True)
    assert settings.connection_limits().max_connections == 7
    assert read_settings(["--allowed-origins", "http://a,http://b"]).api_config().allowed_origins == (
        "http://a",
        "http://b",
    )


@pytest.mark.parametrize(
    ("arguments", "seats", "budget"),
    [
        ([], 1024, 2048),
        (["--max-num-seqs", "2048"], 2048, 4096),
        (["--max-num-seqs", "64"], 64, 2048),
        (["--max-num-batched-tokens", "300"], 299, 300),
        (["--max-num-batched-tokens", "8192"], 1024, 8192),
        (["--max-num-batched-tokens", "300", "--max-num-seqs", "20"], 20, 300),
    ],
)
def test_the_devices_defaults_give_way_to_what_is_set(arguments, seats, budget):
    config = read_settings(arguments).scheduler_config(1024, 2048, 10**6)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (seats, budget)


def test_policies_are_told_by_name():
    settings = read_settings(["--scheduling-policy", "fair", "--inter-token-target-ms", "20"])
    assert settings.policies() == {
        "scheduling": "fair",
        "admission": "on-demand",
        "preemption": "recompute",
        "chunks": "inter-token-target",
        "prefix_cache": "on",
        "training": "deferred",
        "speculation": "none",
    }


def test_layer_steps_between_tokens_need_to_know_how_much_time_there_is():
    with pytest.raises(ConfigError, match="inter-token-target-ms"):
        read_settings(["--finetuning-mode", "interleaved"])
    settings = read_settings(["--finetuning-mode", "interleaved", "--inter-token-target-ms", "20"])
    assert settings.policies()["training"] == "interleaved"


@pytest.mark.parametrize("value", ["-1", "nan", "soon"])
def test_a_deferral_bound_is_a_time(value: str):
    with pytest.raises(ConfigError, match="deferral-bound"):
        read_settings(["--deferral-bound", value])


def test_the_job_may_go_first():
    assert math.isinf(read_settings(["--deferral-bound", "inf"]).deferral_bound)


def test_a_limit_for_each_key_needs_keys():
    with pytest.raises(ConfigError, match="max-requests-per-key"):
        read_settings(["--max-requests-per-key", "2"])
    settings = read_settings(["--max-requests-per-key", "2", "--api-key", "k"])
    assert settings.api_config().max_requests_per_key == 2


def test_keys_may_come_from_a_file_and_are_shown_nowhere(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("bob:hidden-2\n")
    settings = read_settings(["--api-key", "hidden-1", "--api-key-file", str(file), "--max-requests-per-key", "3"])
    assert settings.api_config().api_keys == ("hidden-1", "bob:hidden-2")
    assert "hidden" not in str(settings.non_default())
    assert "hidden-2" not in repr(settings)
    file.write_text("hidden 3\n")
    with pytest.raises(ConfigError, match=r"^api-key-file: line 1 is not KEY") as refused:
        read_settings(["--api-key-file", str(file)])
    assert "hidden" not in str(refused.value)


def test_a_path_before_all_others():
    settings = read_settings(["--root-path", "/llm/v2"])
    assert settings.api_config().root_path == "/llm/v2"
    assert settings.connection_limits().upload_paths == ("/v1/files", "/llm/v2/v1/files")
    assert read_settings([]).connection_limits().upload_paths == ("/v1/files",)
    for wrong in ("llm", "/llm/", "/", "/a b", "/a//b", "/a?b"):
        with pytest.raises(ConfigError, match="root-path"):
            read_settings(["--root-path", wrong])


def test_what_vllms_users_set_for_all_streams_and_logprobs():
    config = read_settings(["--enable-force-include-usage", "--return-tokens-as-token-ids"]).api_config()
    assert (config.force_usage, config.tokens_as_ids) == (True, True)


def test_as_many_logprobs_as_there_can_be():
    assert read_settings(["--max-logprobs", "-1", "--max-stops", "4"]).api_config().max_logprobs == 128
    assert read_settings(["--max-logprobs", "5", "--max-stops", "4"]).api_config().max_stops == 4
    for wrong in ("-2", "129"):
        with pytest.raises(ConfigError, match="max-logprobs"):
            read_settings(["--max-logprobs", wrong])


def test_keys_of_operators_are_others_and_shown_nowhere(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("ops:hidden-2\n")
    settings = read_settings(["--admin-api-key", "hidden-1", "--admin-api-key-file", str(file), "--api-key", "sk-a"])
    assert settings.api_config().admin_api_keys == ("hidden-1", "ops:hidden-2")
    assert settings.api_config().api_keys == ("sk-a",)
    assert "hidden" not in str(settings.non_default())
    assert "hidden-2" not in repr(settings)
    with pytest.raises(ConfigError, match="have a key in common") as refused:
        read_settings(["--api-key", "ann:hidden-2", "--admin-api-key-file", str(file)])
    assert "hidden" not in str(refused.value)
    file.write_text("")
    with pytest.raises(ConfigError, match=r"^admin-api-key-file: .* holds no key"):
        read_settings(["--admin-api-key-file", str(file)])


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        ([], ()),
        (["--host", "localhost"], ()),
        (["--host", "::1"], ()),
        (["--host", "127.0.0.2"], ()),
        (["--host", "0.0.0.0"], ("*",)),
        (["--host", "llm.example.com"], ("*",)),
        (["--uds", "socket"], ("*",)),
        (["--api-key", "secret"], ("*",)),
        (["--allowed-hosts", "*"], ("*",)),
        (["--allowed-hosts", "llm.example.com, *.local"], ("llm.example.com", "*.local")),
        (["--allowed-hosts", "a", "--api-key", "secret", "--host", "0.0.0.0"], ("a",)),
    ],
)
def test_a_loopback_address_without_keys_has_no_other_name(flags: list[str], hosts: tuple[str, ...]):
    assert read_settings(flags).api_config().allowed_hosts == hosts


@pytest.mark.parametrize("name", ["http://a", "a:8000", "*a", "a.*", "a b", "*."])
def test_what_is_no_name_of_a_host_is_refused(name: str):
    with pytest.raises(ConfigError, match=r"allowed-hosts: .* is not a host name"):
        read_settings(["--allowed-hosts", name])


def test_one_body_fits_what_all_may_hold() -> None:
    with pytest.raises(ConfigError, match=r"max-total-body-bytes .* must be at least max-body-bytes"):
        read_settings(["--max-body-bytes", "300MiB"])
    config = read_settings(["--max-body-bytes", "300MiB", "--max-total-body-bytes", "1GiB"]).api_config()
    assert (config.max_body_bytes, config.max_total_body_bytes) == (300 * 2**20, 2**30)


def test_responses_are_kept_if_the_operator_says_so() -> None:
    assert read_settings([]).api_config().responses_store_bytes == 0
    assert read_settings(["--responses-store"]).api_config().responses_store_bytes == 256 * 2**20
    sized = read_settings(["--responses-store", "--responses-store-size", "1GiB"]).api_config()
    assert sized.responses_store_bytes == 2**30
    assert read_settings(["--responses-store-size", "1GiB"]).api_config().responses_store_bytes == 0


def test_ranks_serve_adapters_and_train_them():
    assert read_settings([]).parallel_config().num_ranks == 1
    settings = read_settings(["--tensor-parallel-size", "4"])
    assert settings.parallel_config() == ParallelConfig(4)
    assert read_settings(["--tensor-parallel-size", "2", "--lora-dir", "there"]).lora_config() is not None
    of_both = ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--enable-finetuning"]
    assert read_settings(of_both[:2] + of_both[4:]).lora_config().trains
    assert read_settings(of_both).lora_config().trains


def test_what_swap_rounds_cannot_be_deterministic():
    rounding = ["--deterministic", "--swap-compression", "fp8", "--preemption"]
    with pytest.raises(ConfigError, match="deterministic cannot be combined with swap-compression fp8"):
        read_settings([*rounding, "swap"])
    assert read_settings([*rounding, "recompute"]).api_config().exact_swap


def test_stages_are_equal_ranks_behind_one_another_and_serve_what_they_can():
    settings = read_settings(["--tensor-parallel-size", "2", "--pipeline-parallel-size", "3"])
    assert settings.parallel_config() == ParallelConfig(2, 3)
    assert settings.parallel_config().num_ranks == 6
    all_of_it = ["--pipeline-parallel-size", "2", "--lora-dir", "x", "--choices", "x", "--speculation", "ngram"]
    assert read_settings(all_of_it).num_batches == 2
    assert read_settings([*all_of_it, "--overlap"]).num_batches == 2
    assert read_settings([*all_of_it, "--no-overlap"]).num_batches == 1


def test_several_hosts_have_equal_stages_a_secret_and_a_number_each():
    two = ["--pipeline-parallel-size", "4", "--nnodes", "2", "--node-secret", "s" * 16]
    settings = read_settings([*two, "--node-rank", "1", "--master-addr", "10.0.0.1"])
    assert settings.node_config() == NodeConfig(2, 1, "10.0.0.1", 29501, "s" * 16)
    assert settings.parallel_config() == ParallelConfig(1, 4, 2)
    assert "sss" not in repr(settings.node_config()) + str(settings.non_default())
    assert read_settings([]).node_config() is None
    for refused, words in (
        (["--nnodes", "2"], "pipeline-parallel-size (1) must be a multiple of nnodes (2)"),
        ([*two[:4]], "nnodes 2 needs a node-secret"),
        (["--node-rank", "1"], "node-rank must be at most 0 with nnodes 1, got 1"),
        ([*two[:4], "--node-secret", "short"], "node-secret"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)) as fault:
            read_settings(refused)
        assert "short" not in str(fault.value)
