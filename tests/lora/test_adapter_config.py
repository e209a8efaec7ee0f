from __future__ import annotations

import json
from pathlib import Path

import pytest
from peft.utils.other import get_pattern_key

from service.errors import AdapterError
from service.lora.adapter_config import MAX_CONFIG_BYTES, MAX_PATTERN_CHARS, AdapterConfig, read_adapter_config
from tests.complexity.growth import MOST_GROWTH, WorstInput, least_growth

MODULES = [
    *(f"model.layers.{i}.{name}" for i in (0, 1, 11) for name in ("self_attn.q_proj", "mlp.up_proj")),
    *("transformer.h.1.attn.c_attn", "q_proj", "my_q_proj", "model.decoder.layers.1.fc1"),
]
PATTERNS = [
    *("q_proj", "up_proj|c_attn", "^q_proj", "^model.layers.1.mlp.up_proj", r"layers\.1\..*", "1.self_attn.q_proj"),
    *(
        "self_attn",
        ".*",
        "fc[12]",
        r"(model|decoder)\.layers\.\d+\.(mlp\.)?(up_proj|fc1)",
        "q_proj$",
        "",
        "h.1.attn.c_attn",
    ),
]


def config(folder: Path, **fields: object) -> AdapterConfig:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **fields}))
    return read_adapter_config(folder, max_patterns=100)


def refusal(folder: Path, **fields: object) -> str:
    with pytest.raises(AdapterError) as refused:
        config(folder, **fields)
    assert refused.value.message.startswith("adapter_config.json: ")
    assert len(refused.value.message) < 500
    return refused.value.message


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_they_mean_to_peft(tmp_path: Path, pattern: str):
    read = config(tmp_path, r=2, rank_pattern={pattern: 3}, lora_alpha=1, alpha_pattern={pattern: 6})
    for module in MODULES:
        matched = get_pattern_key([pattern], module) == pattern
        assert read.rank_of(module) == (3 if matched else 2), module
        assert read.scale_of(module) == (6 / 3 if matched else 1 / 2), module


def test_the_first_pattern_that_matches_decides(tmp_path: Path):
    read = config(tmp_path, rank_pattern={"up_proj": 3, "q_proj": 4, ".*": 5})
    assert [read.rank_of(module) for module in ("a.q_proj", "a.up_proj", "a.o_proj")] == [4, 3, 5]


@pytest.mark.parametrize(("use_rslora", "scale"), [(False, 3.0), (True, 6.0)])
def test_rank_stabilized_scales(tmp_path: Path, use_rslora: bool, scale: float):
    assert config(tmp_path, r=4, lora_alpha=12, use_rslora=use_rslora).scale_of("m") == scale


def test_what_is_not_written_is_as_pefts_default(tmp_path: Path):
    read = config(tmp_path)
    assert (read.rank, read.alpha, read.use_rslora) == (8, 8.0, False)


@pytest.mark.parametrize("alpha", [0, -4, 0.5])
def test_any_finite_alpha_is_one(tmp_path: Path, alpha: float):
    assert config(tmp_path, r=2, lora_alpha=alpha).scale_of("m") == alpha / 2


@pytest.mark.parametrize(
    "fields",
    [
        {"peft_type": "IA3"},
        {"peft_type": None},
        {"peft_type": "ADALORA"},
        {"use_dora": True},
        {"use_qalora": True},
        {"use_bdlora": {"nblocks": 2}},
        {"alora_invocation_tokens": [1, 2]},
        {"arrow_config": {"top_k": 3}},
        {"kasa_config": {}, "monteclora_config": {"num_samples": 8}},
        {"kasa_config": {"beta": 1}},
        {"layer_replication": [[0, 2], [1, 3]]},
        {"lora_bias": True},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": [3]},
        {"target_parameters": ["experts.gate_up_proj"]},
        *(
            {"init_lora_weights": name}
            for name in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "new")
        ),
        {"use_later_lora": True},
        {"later_config": {"a": 1}},
        {"use_rslora": 1},
        *({"r": value} for value in (0, -1, True, 1.5, "8", None)),
        *({"lora_alpha": value} for value in ("8", None, True, 10**400, [1])),
        {"rank_pattern": ["q_proj"]},
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": {"q_proj(": 4}},
        {"rank_pattern": {"(?=q)q_proj": 4}},
        {"rank_pattern": {"x" * (MAX_PATTERN_CHARS + 1): 4}},
        {"rank_pattern": {f"m{i}": 4 for i in range(101)}},
        {"alpha_pattern": {"q_proj": "8"}},
        {"alpha_pattern": "q_proj"},
        {"r": "x" * 10_000},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_what_is_not_served_names_its_field(tmp_path: Path, fields: dict):
    assert list(fields)[-1] in refusal(tmp_path, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"use_dora": False, "lora_bias": False, "modules_to_save": None, "layer_replication": [], "bias": "none"},
        {"eva_config": {"rho": 2.0}, "init_lora_weights": "eva"},
        {"corda_config": {"beta": 1}, "loftq_config": {}, "megatron_config": None, "megatron_core": "megatron.core"},
        {"target_modules": None, "layers_to_transform": [0], "layers_pattern": "layers", "exclude_modules": "x"},
        {"fan_in_fan_out": True, "lora_dropout": 0.1, "task_type": "CAUSAL_LM", "later": 4, "use_later": False},
        *({"init_lora_weights": value} for value in (True, False, None, "gaussian", "orthogonal")),
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_what_changes_nothing_of_the_computation_is_let_pass(tmp_path: Path, fields: dict):
    assert config(tmp_path, **fields).rank == 8


def test_a_scale_beyond_fp32_is_refused(tmp_path: Path):
    read = config(tmp_path, lora_alpha=1e300)
    with pytest.raises(AdapterError, match="exceeds the range of fp32"):
        read.scale_of("m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"[" * 100_000, "is nested too deep"),
        (b'{"a":' * 50_000, "is nested too deep"),
        (b'{"peft_type": "LORA", "r": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b" " * MAX_CONFIG_BYTES + b"{}", "is larger than"),
        (b'{"peft_type": "LORA", "lora_alpha": NaN}', "lora_alpha must be a finite number"),
        (b'{"peft_type": "LORA", "lora_alpha": 1e999}', "lora_alpha must be a finite number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: bytes, message: str):
    (tmp_path / "adapter_config.json").write_bytes(text)
    with pytest.raises(AdapterError, match=message):
        read_adapter_config(tmp_path, max_patterns=100)


def test_a_pattern_takes_time_as_the_names_length(tmp_path: Path):
    """Python's own engine would take as long as there are ways to share the name among the parts."""
    nested = config(tmp_path, rank_pattern={"(" * 20 + "a" + "*)*" * 20 + "!": 1, "(.*)" * 30 + "!": 2})

    def match(size: int) -> object:
        name = "a" * size
        return lambda: nested.rank_of(name)

    assert least_growth(WorstInput("pattern", (), match, 20_000, 20_000, "name")) < MOST_GROWTH


def test_many_patterns_are_read_in_time_as_their_number(tmp_path: Path):
    """As EVA writes them: each module of a large model by its name."""

    def read(size: int) -> object:
        folder = tmp_path / str(size)
        folder.mkdir(exist_ok=True)
        names = [f"model.layers.{i}.self_attn.q_proj" for i in range(size)]
        fields = {"peft_type": "LORA", "rank_pattern": dict.fromkeys(names, 3)}
        (folder / "adapter_config.json").write_text(json.dumps(fields))
        return lambda: read_adapter_config(folder, max_patterns=size)

    assert least_growth(WorstInput("patterns", (), read, 200, 200, "entry")) < MOST_GROWTH
