from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.errors import ModelLoadError
from service.layers.tensor_parallel import ALONE
from service.models import checkpoint_file
from service.models.model_config import load_model_config
from service.models.registry import build_model
from service.models.weight_loader import load_weights
from tests.layers.test_shard import ranks
from tests.models.bitsandbytes_checkpoints import BITSANDBYTES
from tests.models.checkpoints import gpt2, llama, mistral, opt, oracle, qwen2, qwen3
from tests.models.quantized_checkpoints import quantized


def loaded(folder, dtype=torch.float32, on_progress=None, torch_format=False, parallel=ALONE):
    model = build_model(load_model_config(folder), parallel)
    model.materialize(dtype, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    load_weights(model, folder, on_progress, torch_format=torch_format)
    return model


def shard(folder, num_files):
    """The single file, as several with an index."""
    single = folder / "model.safetensors"
    tensors = load_file(single)
    names = sorted(tensors)
    weight_map = {name: f"model-{i % num_files}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    single.unlink()


def as_torch_files(folder, num_files):
    """The single file, in torch's own format: one, or several with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if num_files == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    weight_map = {name: f"pytorch_model-{i % num_files}.bin" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        torch.save({n: tensors[n] for n in tensors if weight_map[n] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.pairwise
@pytest.mark.parametrize("save", [llama, mistral, qwen2, qwen3, opt, gpt2])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_files", [1, 3])
def test_every_weight_arrives_in_its_place(save, tied, num_files, tmp_path):
    biases = {"attention_bias": True} if save in {llama, qwen3} else {}
    folder = save(tmp_path, tie_word_embeddings=tied, **biases)
    theirs = oracle(folder).state_dict()
    if num_files > 1:
        shard(folder, num_files)
    table = loaded(folder).checkpoint_tensors()
    for name, tensor in table.items():
        assert torch.equal(tensor, theirs[name]), name
    assert set(theirs) - set(table) <= ({"lm_head.weight"} if tied else set())


@pytest.mark.parametrize("num_files", [1, 2])
def test_torchs_own_format_is_read_where_there_are_no_safetensors(num_files, tmp_path):
    folder = opt(tmp_path)
    theirs = oracle(folder).state_dict()
    as_torch_files(folder, num_files)
    table = loaded(folder, torch_format=True).checkpoint_tensors()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in table.items())


def test_each_format_is_read_only_if_it_is_asked_for(tmp_path):
    folder = opt(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"not looked at")
    loaded(folder)
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin: is not a readable torch checkpoint"):
        loaded(folder, torch_format=True)


@pytest.mark.parametrize("num_files", [1, 3])
def test_a_pickle_is_not_opened_unless_it_is_asked_for(num_files, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("opened"))
    folder = opt(tmp_path)
    as_torch_files(folder, num_files)
    with pytest.raises(ModelLoadError, match=r"only safetensors are read\. With load-format pt"):
        loaded(folder)
    (folder / "pytorch_model.bin.index.json").unlink(missing_ok=True)
    weight_map = {"x": "pytorch_model-0.bin"}
    (folder / "pytorch_model-0.bin").touch()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelLoadError, match=r"files that are not \.safetensors: pytorch_model-0\.bin"):
        loaded(folder)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
def test_converts_to_the_dtype_that_is_served(stored, held, tmp_path):
    folder = llama(tmp_path)

    def convert(tensors):
        for name in tensors:
            tensors[name] = tensors[name].to(stored)

    rewritten(folder, convert)
    want = load_file(folder / "model.safetensors")["model.layers.1.self_attn.k_proj.weight"]
    got = loaded(folder, held).checkpoint_tensors()["model.layers.1.self_attn.k_proj.weight"]
    assert got.dtype is held
    assert torch.equal(got, want.to(held))


def test_reports_progress_to_the_last_byte(tmp_path):
    folder = llama(tmp_path)
    shard(folder, 3)
    calls = []
    model = loaded(folder, on_progress=lambda done, total: calls.append((done, total)))
    total = sum(p.numel() * 4 for p in model.parameters())
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_harmless_extras_are_passed_over(tmp_path):
    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
        tensors["lm_head.weight"] = torch.zeros(1)

    loaded(rewritten(llama(tmp_path, tie_word_embeddings=True), add))


def test_a_prefix_may_be_left_out_of_some_names_or_all(tmp_path):
    folder = gpt2(tmp_path)
    want = oracle(folder).state_dict()

    def shorten(tensors):
        for name in sorted(tensors)[::2]:
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    table = loaded(rewritten(folder, shorten)).checkpoint_tensors()
    assert all(torch.equal(tensor, want[name]) for name, tensor in table.items())


def test_a_weight_with_both_names_is_not_guessed_at(tmp_path):
    def add(tensors):
        tensors["wpe.weight"] = tensors["transformer.wpe.weight"] + 1

    with pytest.raises(ModelLoadError, match=r"not part of this architecture: wpe\.weight"):
        loaded(rewritten(gpt2(tmp_path), add))


def test_names_every_kind_of_fault_at_once(tmp_path):
    def spoil(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(1)
        tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(3, 4)
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].to(torch.int8)

    with pytest.raises(ModelLoadError) as fault:
        loaded(rewritten(llama(tmp_path), spoil))
    for part in (
        "missing: model.norm.weight, model.layers.1.mlp.up_proj.weight",
        "not part of this architecture: model.layers.7.mlp.up_proj.weight",
        "of another shape: model.layers.0.self_attn.q_proj.weight (3, 4) instead of (64, 64)",
        "neither bf16, fp16 nor fp32: model.embed_tokens.weight I8",
    ):
        assert part in str(fault.value)


def test_counts_what_it_does_not_name(tmp_path):
    def spoil(tensors):
        tensors.update({f"extra.{i}": torch.zeros(1) for i in range(20)})

    with pytest.raises(ModelLoadError, match="and 12 more"):
        loaded(rewritten(llama(tmp_path), spoil))


def test_a_file_that_is_no_safetensors_is_named(tmp_path):
    folder = llama(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: is not a readable safetensors file"):
        loaded(folder)


class CountedSlice:
    def __init__(self, part, count):
        self._part, self._count = part, count

    def __getitem__(self, index):
        return self._count(self._part[index])


class CountedFile:
    """A safetensors file that counts what it gives away of its tensors."""

    def __init__(self, opened, num_bytes):
        self._opened, self._num_bytes = opened, num_bytes

    def __enter__(self):
        self._opened.__enter__()
        return self

    def __exit__(self, *fault):
        return self._opened.__exit__(*fault)

    def offset_keys(self):
        return self._opened.offset_keys()

    def get_tensor(self, name):
        return self._count(self._opened.get_tensor(name))

    def get_slice(self, name):
        return CountedSlice(self._opened.get_slice(name), self._count)

    def _count(self, tensor):
        self._num_bytes.append(tensor.nbytes)
        return tensor


def test_the_ranks_parts_are_checked_by_the_whole_tensors_shape(tmp_path):
    def shorten(tensors):
        tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(64, 48)

    with pytest.raises(ModelLoadError, match=r"down_proj\.weight \(64, 48\) instead of \(64, 96\)"):
        loaded(rewritten(llama(tmp_path), shorten), parallel=ranks(2)[0])


@pytest.mark.parametrize("save", [llama, qwen2, qwen3, opt, gpt2])
@pytest.mark.parametrize("size", [2, 4])
def test_each_rank_reads_its_part_of_every_tensor_and_no_more(save, size, tmp_path, monkeypatch):
    """Together they read what is divided once, and what is not (norms, positions, kv heads of which there are fewer
    than ranks) each for itself."""
    biases = {"attention_bias": True} if save in {llama, qwen3} else {}
    folder = save(tmp_path, tie_word_embeddings=save is gpt2, **biases)
    stored = load_file(folder / "model.safetensors")
    num_read = []
    for rank in ranks(size):
        with monkeypatch.context() as patched:
            headers = list(checkpoint_file.read_header(folder / "model.safetensors"))
            patched.setattr("service.models.weight_loader.read_header", lambda _, headers=headers: headers)
            opened = checkpoint_file._opened
            patched.setattr(checkpoint_file, "_opened", lambda file, o=opened: CountedFile(o(file), num_read))
            model = loaded(folder, parallel=rank)
        table, shards = model.checkpoint_tensors(), model.checkpoint_shards()
        for name, part in table.items():
            if part.numel():
                assert torch.equal(part, shards[name].of(stored[name]) if name in shards else stored[name]), name
        own = {name: part for name, part in table.items() if part.numel()}
        assert sum(num_read) == sum(part.nbytes for part in own.values())
        assert max(part.numel() / stored[name].numel() for name, part in own.items() if name in shards) < 0.67
        num_read.clear()
        divided = {
            name for name in own if stored[name].dim() == 2 and "embed_positions" not in name and "wpe" not in name
        }
        assert divided <= shards.keys(), "every matrix is divided"


@pytest.mark.parametrize("torch_format", [False, True])
@pytest.mark.parametrize("num_files", [1, 3])
@pytest.mark.parametrize("kind", ["nf4, nested", "int8"])
def test_what_bitsandbytes_has_quantized_arrives_plain(kind, num_files, torch_format, tmp_path):
    """On every rank its part of it; a weight's tensors may lie in several files."""
    folder = quantized(llama(tmp_path / "it"), kind, BITSANDBYTES)
    want = [loaded(folder / "plain", parallel=parallel) for parallel in (ALONE, *ranks(2))]
    if torch_format:
        as_torch_files(folder, num_files)
    elif num_files > 1:
        shard(folder, num_files)
    for parallel, plain in zip((ALONE, *ranks(2)), want, strict=True):
        table = loaded(folder, parallel=parallel, torch_format=torch_format).checkpoint_tensors()
        for name, tensor in plain.checkpoint_tensors().items():
            assert torch.equal(table[name], tensor), name


def test_of_a_checkpoint_that_does_not_say_so_such_tensors_are_named(tmp_path):
    folder = quantized(llama(tmp_path / "it"), "nf4", BITSANDBYTES)
    (folder / "config.json").write_text((folder / "plain" / "config.json").read_text())
    with pytest.raises(ModelLoadError, match=r"not part of this architecture: .*\.weight\.absmax.*mlp.*U8"):
        loaded(folder)


def test_a_matrix_that_bitsandbytes_turned_round_is_named(tmp_path):
    """transformers has it quantize GPT-2's, which lie the other way round than all others, as [out, in]."""
    folder = gpt2(tmp_path / "it")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("h.0.attn.c_attn.weight"))
    stored, _ = BITSANDBYTES["int8"][1](tensors.pop(name).T.contiguous())
    stored = {f"{name.removesuffix('.weight')}.{suffix}": tensor for suffix, tensor in stored.items()}
    save_file(tensors | stored, folder / "model.safetensors")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = BITSANDBYTES["int8"][0]
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match=r"of another shape: .*attn\.c_attn\.weight \(192, 64\) instead of \(64"):
        loaded(folder)
