"""Tiny checkpoints of every quantized layout, made by the formats' own tools, and the tokens that they should give:

    python -m tests.equivalence.tool_checkpoints make NEW_FOLDER TOKENIZER_FOLDER   where the tools are installed
    python -m tests.equivalence.tool_checkpoints check FOLDER                       where the service is installed

The tools need a separate environment, but no GPU: pip install torch llmcompressor auto-round, and with --no-deps
autoawq, gptqmodel, pypcre, tokenicer, device-smi, logbar, threadpoolctl and defuser. If a tool fails, its name is
printed and the others go on. The reference is transformers' `generate` in fp32, with plain weights that the tools
themselves make of a checkpoint: compressed-tensors' decompression, GPTQModel's torch kernels (also for AutoRound's and
AutoAWQ's layouts). `check` computes the same prompts with the service's runner in fp32, and exits with 1 if a token
differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

_PROMPT_LENGTHS = (1, 9, 40)
_NUM_TOKENS = 24
_REFERENCE = "reference.json"
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_INT8 = {**_INT4, "num_bits": 8}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="checkpoints by the formats' own tools")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    make.add_argument("new", type=Path)
    make.add_argument("tokenizer", type=Path)
    make.add_argument("--only", default="", help="part of the names of those to make (all)")
    check = commands.add_parser("check")
    check.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "make":
        make_all(options.new, options.tokenizer, options.only)
    else:
        sys.exit(check_all(options.folder))


def check_all(folder: Path) -> int:
    """Returns 0 if there is a reference, and the service gives the tokens of every one."""
    from tests.runner.loading import load
    from tests.runner.plan_player import PlanPlayer, greedy

    all_equal = []
    for reference in sorted(folder.glob(f"*/{_REFERENCE}")):
        content = json.loads(reference.read_text())
        loaded = load(reference.parent)
        got = PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(content["prompts"], greedy(_NUM_TOKENS))
        equal = [list(ours) == theirs for ours, theirs in zip(got, content["tokens"], strict=True)]
        print(f"{reference.parent.name} ({loaded.quantization}): {sum(equal)} of {len(equal)} equal", flush=True)
        all_equal += equal
    return 0 if all_equal and all(all_equal) else 1


def make_all(new: Path, tokenizer: Path, only: str = "") -> None:
    plain = new / "plain"
    _make_plain(plain, tokenizer)
    by_compressor: dict[str, tuple[bool, Any]] = {
        "w4a16": (True, {**_INT4, "symmetric": True}),
        "w4a16-zeros": (True, {**_INT4, "symmetric": False}),
        "w8a8": (False, "W8A8"),
        "w8a16": (False, "W8A16"),
        "w8a16-groups": (True, {**_INT8, "symmetric": True}),
        "fp8-dynamic": (False, "FP8_DYNAMIC"),
        "fp8-static": (False, "FP8"),
        "fp8-block": (False, "FP8_BLOCK"),
    }
    makers: dict[str, Callable[[Path, Path], None]] = {
        **{f"llmcompressor-{kind}": partial(_by_llmcompressor, *how) for kind, how in by_compressor.items()},
        "autoround-gptq": partial(_by_autoround, "auto_gptq", True),
        "autoround-awq": partial(_by_autoround, "auto_awq", False),
        "autoround": partial(_by_autoround, "auto_round", True),
        "autoawq": _by_autoawq,
        "gptqmodel": partial(_by_gptqmodel, 4),
        "gptqmodel-int8": partial(_by_gptqmodel, 8),
    }
    for name, maker in makers.items():
        if only not in name:
            continue
        try:
            maker(plain, new / name)
            of_compressor = name.startswith("llmcompressor")
            weights = _decompressed(new / name) if of_compressor else _dequantized(new / name)
            _write_reference(plain, weights, new / name)
        except Exception as fault:
            print(f"{name}: {type(fault).__name__}: {fault}", flush=True)
            shutil.rmtree(new / name, ignore_errors=True)
            continue
        print(f"{name}: made", flush=True)


def _make_plain(plain: Path, tokenizer: Path) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    words.save_pretrained(plain)


def _texts() -> list[str]:
    from pydoc_data.topics import topics

    return [topics[name][:2000] for name in sorted(topics)][:16]


def _by_llmcompressor(is_gptq: bool, how: Any, plain: Path, there: Path) -> None:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    words = AutoTokenizer.from_pretrained(plain)
    ids = [words(text)["input_ids"][:64] for text in _texts()]
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]})
    if is_gptq:
        groups = {"group_0": {"targets": ["Linear"], "weights": how}}
        modifier = GPTQModifier(config_groups=groups, ignore=["lm_head"])
    else:
        modifier = QuantizationModifier(targets="Linear", scheme=how, ignore=["lm_head"])
    oneshot(model=model, dataset=data, recipe=[modifier], max_seq_length=64, num_calibration_samples=len(ids))
    model.save_pretrained(there, save_compressed=True)


def _by_autoround(layout: str, is_symmetric: bool, plain: Path, there: Path) -> None:
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    words = AutoTokenizer.from_pretrained(plain)
    tool = AutoRound(
        model, words, bits=4, group_size=32, sym=is_symmetric, iters=0, device_map="cpu", disable_opt_rtn=True
    )
    made = there.with_name(there.name + "-made")
    tool.quantize_and_save(str(made), format=layout)
    shutil.move(next(made.glob("**/model.safetensors")).parent, there)
    shutil.rmtree(made, ignore_errors=True)


def _by_autoawq(plain: Path, there: Path) -> None:
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer

    model = AutoAWQForCausalLM.from_pretrained(str(plain), device_map="cpu")
    how = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    words = AutoTokenizer.from_pretrained(plain)
    model.quantize(words, quant_config=how, calib_data=_texts(), max_calib_seq_len=128)
    model.save_quantized(str(there))
    words.save_pretrained(there)


def _by_gptqmodel(bits: int, plain: Path, there: Path) -> None:
    _let_gptqmodel_start()
    from gptqmodel import GPTQModel, QuantizeConfig

    model = GPTQModel.load(str(plain), QuantizeConfig(bits=bits, group_size=32, desc_act=False), device="cpu")
    model.quantize(_texts(), batch_size=1)
    model.save(str(there))


def _let_gptqmodel_start() -> None:
    """It needs more than one worker, and uses half as many as there are processors."""
    setattr(os, "cpu_count", lambda: 4)  # noqa: B010 - a type checker refuses the assignment


def _decompressed(folder: Path) -> dict[str, torch.Tensor]:
    """By compressed-tensors, with scales in fp32: it rounds the product of element and scale to the scale's dtype."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import CompressedTensorsConfig

    exact = shutil.copytree(folder, folder.with_name(folder.name + "-exact"))
    written = load_file(exact / "model.safetensors")
    wide = {name: tensor.float() if name.endswith("_scale") else tensor for name, tensor in written.items()}
    save_file(wide, exact / "model.safetensors", metadata={"format": "pt"})
    how = CompressedTensorsConfig(run_compressed=False)
    model = AutoModelForCausalLM.from_pretrained(exact, dtype=torch.float32, quantization_config=how)
    shutil.rmtree(exact)
    return {name: tensor for name, tensor in model.state_dict().items() if name.endswith("proj.weight")}


def _dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """By GPTQModel's modules, which have inputs before outputs; with scales in fp32, since 16-bit ones would round
    again. AutoRound's own layout is GPTQ's under another name. Includes the norms, into which AutoAWQ moves factors."""
    _let_gptqmodel_start()
    from gptqmodel import BACKEND, GPTQModel
    from safetensors.torch import load_file

    renamed = shutil.copytree(folder, folder.with_name(folder.name + "-renamed"))
    for file in (renamed / "config.json", renamed / "quantization_config.json"):
        if file.exists():
            file.write_text(file.read_text().replace('"auto-round"', '"gptq"'))
    written = load_file(renamed / "model.safetensors")
    method = json.loads((renamed / "config.json").read_text())["quantization_config"]["quant_method"]
    backend = BACKEND.TORCH_AWQ if method == "awq" else BACKEND.TORCH
    model = GPTQModel.load(str(renamed), backend=backend, device="cpu").model
    weights = dict[str, torch.Tensor]()
    for name, part in model.named_modules():
        if name.endswith("_proj"):
            part.scales = written[f"{name}.scales"].float()
            by_inputs = part.dequantize_weight() if method == "gptq" else part(torch.eye(part.in_features))
            weights[f"{name}.weight"] = by_inputs.T.float().contiguous()
    shutil.rmtree(renamed)
    return weights | {name: tensor.float() for name, tensor in written.items() if name.endswith("norm.weight")}


def _write_reference(plain: Path, weights: dict[str, torch.Tensor], there: Path) -> None:
    """weights: all linears, and everything else that differs from `plain`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    own = {name for name, _ in model.named_parameters() if name.endswith("proj.weight")}
    assert own <= set(weights), f"not read: {sorted(own - set(weights))[:3]}"
    model.load_state_dict(weights, strict=False)
    torch.manual_seed(0)
    prompts = [torch.randint(3, 1000, (length,)).tolist() for length in _PROMPT_LENGTHS]
    tokens = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NUM_TOKENS, do_sample=False, pad_token_id=0
        )
        tokens.append(made[0, len(prompt) :].tolist())
    (there / _REFERENCE).write_text(json.dumps({"prompts": prompts, "tokens": tokens}))


if __name__ == "__main__":
    main()
