from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.errors import AdapterError
from service.lora.adapter_folder import AdapterWeights, read_adapter
from tests.equivalence.hf_model import CONFIGS
from tests.examples import examples
from tests.lora.peft_adapters import (
    base_model,
    matrices_of,
    random_options,
    save_small_adapter,
    sites_of,
    with_config,
    with_tensors,
    wrapped,
)

MAX_RANK = 8
LLAMA_SITES = sites_of(base_model("llama"))
QUERY = "base_model.model.model.layers.0.self_attn.q_proj"
QUERY_A, QUERY_B = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"
DOWN_B = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_adapter(tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(saved, tmp_path / "adapter"))


def read(folder: Path, **changes) -> AdapterWeights:
    return read_adapter(folder, **{"sites": LLAMA_SITES, "max_rank": MAX_RANK, "dtype": torch.float32, **changes})


def refusal(folder: Path, **changes) -> str:
    with pytest.raises(AdapterError) as refused:
        read(folder, **changes)
    assert str(folder) not in refused.value.message
    assert len(refused.value.message) < 4000
    return refused.value.message


@pytest.mark.each_once
@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("seed", range(examples(6)))
def test_what_peft_saves_is_read_as_peft_computes_with_it(family: str, seed: int, tmp_path: Path):
    model = base_model(family)
    sites = sites_of(model)
    is_stack = seed % 3 == 2
    trained = model.base_model if is_stack else model
    adapted = wrapped(trained, seed, **random_options(sorted(sites_of(trained)), seed))
    if seed % 2:
        adapted.to(torch.bfloat16)
    adapted.save_pretrained(tmp_path)

    found = read(tmp_path, sites=sites).sites

    prefix = f"{model.base_model_prefix}." if is_stack else ""
    theirs = {prefix + name: matrices for name, matrices in matrices_of(adapted).items()}
    assert found.keys() == theirs.keys()
    for name, (a, b, scale) in theirs.items():
        assert torch.equal(found[name].a, a.float()), name
        assert torch.equal(found[name].b, b.float()), name
        assert found[name].scale == pytest.approx(scale, rel=1e-12), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_have_the_dtype_that_is_served_and_memory_of_their_own(folder: Path, dtype: torch.dtype):
    stored = {name: tensor.clone() for name, tensor in load_file(folder / "adapter_model.safetensors").items()}
    site = read(folder, dtype=dtype).sites[QUERY.removeprefix("base_model.model.")]
    assert torch.equal(site.a, stored[QUERY_A].to(dtype))
    assert torch.equal(site.b, stored[QUERY_B].to(dtype))
    assert site.a.is_contiguous()
    (folder / "adapter_model.safetensors").write_bytes(b"")
    assert torch.equal(site.a, stored[QUERY_A].to(dtype))


def test_names_without_pefts_prefix_are_the_same(folder: Path):
    before = read(folder).digest
    file = folder / "adapter_model.safetensors"
    save_file({n.removeprefix("base_model.model."): t.clone() for n, t in load_file(file).items()}, file)
    assert read(folder).digest == before


def test_a_checkpoint_without_the_optional_prefix_takes_the_same_adapters(folder: Path):
    sites = {name.removeprefix("model."): site for name, site in LLAMA_SITES.items()}
    assert {f"model.{name}" for name in read(folder, sites=sites).sites} == read(folder).sites.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({QUERY_B: None}, f"missing: {QUERY_B}"),
        ({QUERY_A: None}, f"missing: {QUERY_A}"),
        ({QUERY_A: torch.ones(4, 63)}, f"of another shape: {QUERY_A} (4, 63) instead of (4, 64)"),
        ({QUERY_A: torch.ones(64)}, f"of another shape: {QUERY_A} (64,) instead of (4, 64)"),
        ({QUERY_A: torch.ones(5, 64)}, f"of another shape: {QUERY_A} (5, 64) instead of (4, 64)"),
        ({QUERY_A: torch.ones(0, 64)}, f"of another shape: {QUERY_A} (0, 64) instead of (4, 64)"),
        ({DOWN_B: torch.ones(96, 4)}, f"of another shape: {DOWN_B} (96, 4) instead of (64, 4)"),
        ({QUERY_A: torch.ones(4, 64).double()}, f"neither bf16, fp16 nor fp32: {QUERY_A} F64"),
        ({QUERY_A: torch.ones(4, 64).to(torch.int8)}, f"neither bf16, fp16 nor fp32: {QUERY_A} I8"),
        ({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}, "has no adapters: lm_head"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 9)}, "adapters: model.embed_tokens"),
        ({"base_model.model.model.layers.2.mlp.down_proj.lora_A.weight": torch.ones(1)}, "layers.2.mlp.down_proj"),
        ({f"{QUERY}.lora_magnitude_vector": torch.ones(64)}, f"linear module: {QUERY}.lora_magnitude_vector"),
        ({f"{QUERY}.lora_B.bias": torch.ones(64)}, f"linear module: {QUERY}.lora_B.bias"),
        ({"base_model.model.lm_head.weight": torch.ones(9, 64)}, "linear module: base_model.model.lm_head.weight"),
        ({QUERY_A.removeprefix("base_model.model.model."): torch.ones(4, 64)}, "of one module under two names"),
        ({QUERY_A: torch.full((4, 64), float("nan"))}, f"{QUERY_A} holds NaN or infinity in float32"),
        ({DOWN_B: torch.full((64, 4), -float("inf"))}, f"{DOWN_B} holds NaN or infinity in float32"),
        ({"x" * 2000 + str(i): torch.ones(1) for i in range(20)}, "and 12 more"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder: Path, changes: dict, message: str):
    assert message in refusal(with_tensors(folder, changes))


def test_one_message_tells_of_all_that_does_not_fit(folder: Path):
    with_tensors(folder, {QUERY_B: None, DOWN_B: torch.ones(3, 3), "else": torch.ones(1)})
    told = refusal(folder)
    assert all(name in told for name in (QUERY_B, DOWN_B, "else"))


def test_one_bad_value_in_the_last_place_is_found(folder: Path):
    weights = load_file(folder / "adapter_model.safetensors")[DOWN_B]
    weights[-1, -1] = float("nan")
    assert DOWN_B in refusal(with_tensors(folder, {DOWN_B: weights}))


def test_values_that_the_served_dtype_cannot_hold_are_refused(folder: Path):
    with_tensors(folder, {QUERY_A: torch.full((4, 64), 1e6)})
    read(folder, dtype=torch.bfloat16)
    assert "infinity in float16" in refusal(folder, dtype=torch.float16)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path):
    model = base_model("gpt2")
    sites = sites_of(model)
    wrapped(model, r=2, target_modules=["c_attn"]).save_pretrained(tmp_path)
    assert "transformer.h.0.attn.c_attn" in refusal(tmp_path)
    read(tmp_path, sites=sites)


def test_a_rank_above_the_limit_names_the_module_and_both(folder: Path, tmp_path: Path):
    told = refusal(folder, max_rank=3)
    assert "model.layers.0.self_attn.q_proj 4 instead of at most 3" in told
    assert "--max-lora-rank" in told
    patterned = save_small_adapter(tmp_path / "patterned", r=2, rank_pattern={"down_proj": 8})
    assert "down_proj 8 instead of at most 7" in refusal(patterned, max_rank=7)
    assert "q_proj" not in refusal(patterned, max_rank=7)


def test_a_rank_other_than_the_configs_is_refused(folder: Path):
    """PEFT could not load it either; and of which rank its scale was meant is not known."""
    assert f"{QUERY_A} (4, 64) instead of (2, 64)" in refusal(with_config(folder, r=2))


def test_no_weights(folder: Path):
    (folder / "adapter_model.safetensors").unlink()
    assert refusal(folder) == "adapter_model.safetensors: is not in the adapter's folder"


def test_a_pickle_is_not_read(folder: Path):
    tensors = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(tensors, folder / "adapter_model.bin")
    assert refusal(folder).startswith("adapter_model.bin: is a pickle")


def test_no_folder(tmp_path: Path):
    assert "adapter_config.json: is not in the adapter's folder" in refusal(tmp_path / "none")
    assert "adapter_config.json: is not in the adapter's folder" in refusal(tmp_path / ("x" * 5000))


def test_an_adapter_of_nothing_is_refused(folder: Path):
    save_file({}, folder / "adapter_model.safetensors")
    assert "contains no LoRA tensors" in refusal(folder)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(folder: Path):
    """Sparse: a terabyte, of which none is read."""
    limit = MAX_RANK * 4 * sum(site.in_features + site.out_features for site in LLAMA_SITES.values())
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(limit)
    assert "bytes of weights instead of" in refusal(folder)
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    told = refusal(folder)
    assert f"has {1 << 40} bytes" in told
    assert limit < int(re.search(r"at most (\d+)", told)[1]) < limit + 200_000


def test_every_place_where_a_file_may_be_cut_is_a_refusal(folder: Path):
    file = folder / "adapter_model.safetensors"
    whole = file.read_bytes()
    for length in [*range(0, len(whole), 997), len(whole) - 1]:
        file.write_bytes(whole[:length])
        assert "adapter_model.safetensors" in refusal(folder)


def test_the_largest_adapter_that_the_limits_allow_is_read(tmp_path: Path):
    save_small_adapter(tmp_path, r=MAX_RANK, target_modules="all-linear")
    assert read(tmp_path).sites.keys() == LLAMA_SITES.keys()


def test_the_digest_changes_with_every_weight_and_scale_and_only_so(saved: Path, tmp_path: Path):
    def digest(change=None, dtype=torch.float32) -> str:
        copy = Path(shutil.copytree(saved, tmp_path / "copy"))
        if change is not None:
            change(copy)
        found = read(copy, dtype=dtype).digest
        shutil.rmtree(copy)
        return found

    tensors = load_file(saved / "adapter_model.safetensors")
    before = digest()
    others = {before, digest(dtype=torch.bfloat16)}
    for name, tensor in tensors.items():
        changed = tensor.clone()
        changed[-1, -1] = torch.nextafter(changed[-1, -1], torch.tensor(9.0))
        others.add(digest(lambda copy, name=name, changed=changed: with_tensors(copy, {name: changed})))
    layer_0, layer_1 = QUERY, QUERY.replace("layers.0", "layers.1")
    pairs = [(f"{layer_0}.lora_{m}.weight", f"{layer_1}.lora_{m}.weight") for m in "AB"]
    swapped = {new: tensors[old] for pair in pairs for new, old in (pair, pair[::-1])}
    others.add(digest(lambda copy: with_tensors(copy, swapped)))
    fewer = {name: None for pair in pairs for name in pair[:1]}
    others.add(digest(lambda copy: with_tensors(copy, fewer)))
    others.add(digest(lambda copy: with_config(copy, lora_alpha=9)))
    others.add(digest(lambda copy: with_config(copy, use_rslora=True)))
    others.add(digest(lambda copy: with_config(copy, alpha_pattern={"layers.1.mlp.down_proj": 9})))
    assert len(others) == 2 + len(tensors) + 5

    def reordered(copy: Path) -> None:
        """The same tensors, lying otherwise in the file."""
        by_name = dict(sorted(tensors.items(), reverse=True))
        header, data = {}, b""
        for name, tensor in by_name.items():
            raw = tensor.numpy().tobytes()
            header[name] = {
                "dtype": "F32",
                "shape": list(tensor.shape),
                "data_offsets": [len(data), len(data) + len(raw)],
            }
            data += raw
        text = json.dumps(header).encode()
        (copy / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)

    assert digest(reordered) == before
    unchanged = {
        "lora_dropout": 0.5,
        "base_model_name_or_path": "other",
        "inference_mode": False,
        "target_modules": "x",
    }
    assert digest(lambda copy: with_config(copy, **unchanged)) == before
    assert digest(lambda copy: with_config(copy, r=4, lora_alpha=1, alpha_pattern={".*": 8})) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pipe_is_not_waited_on(folder: Path, name: str):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert refusal(folder) == f"{name}: is not in the adapter's folder"


def test_links_are_followed(folder: Path, tmp_path: Path):
    """As in a cache of the hub, where files are links to their contents."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in folder.iterdir():
        (linked / file.name).symlink_to(file)
    assert read(linked).digest == read(folder).digest
