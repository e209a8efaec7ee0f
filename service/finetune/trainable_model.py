"""Which models can be trained, and which of their linears get an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.errors import InvalidRequest
from service.finetune.training_state import ParameterLayout
from service.layers.gated_mlp import GatedMlp
from service.layers.linear import NamedLinear
from service.layers.mixture_of_experts import MixtureOfExperts
from service.layers.pipeline_stage import PlannedStage, layers_of
from service.lora.adapter_folder import AdapterSite
from service.models.causal_lm import CausalLM
from service.models.gemma import Gemma
from service.models.llama import Llama, LlamaBlock

_TRAINED_FAMILIES = "Llama, Mistral, Qwen2 and Qwen3, with SiLU"


def check_trainable(model: CausalLM) -> Llama:
    """Returns the model. Raises InvalidRequest if there is no backward pass for it here."""
    if not isinstance(model, Llama) or isinstance(model, Gemma):
        raise InvalidRequest(
            f"{type(model).__name__} models cannot be trained; {_TRAINED_FAMILIES}, can", param="model"
        )
    mlps = [block.mlp for block in blocks_of(model)]
    if any(isinstance(mlp, MixtureOfExperts) for mlp in mlps):
        raise InvalidRequest(
            f"models with a mixture of experts cannot be trained; {_TRAINED_FAMILIES}, can", param="model"
        )
    if not all(isinstance(mlp, GatedMlp) and mlp.is_silu for mlp in mlps):
        raise InvalidRequest(
            f"this model's activation is not SiLU, so it cannot be trained; {_TRAINED_FAMILIES}, can", param="model"
        )
    if any(len(block.attention.qkv.out_features) == 1 for block in blocks_of(model)):
        raise InvalidRequest(
            f"models whose query, key and value are one tensor cannot be trained; {_TRAINED_FAMILIES}, can",
            param="model",
        )
    return model


def blocks_of(model: Llama) -> Sequence[LlamaBlock]:
    return [block for block in model.blocks if isinstance(block, LlamaBlock)]


def block_names(model: Llama) -> Sequence[str]:
    """Name prefix, in the checkpoint, of each of this stage's blocks."""
    return [name for name, _ in model.named_blocks()]


def num_layers(model: CausalLM) -> int:
    """Layers of all stages together; all stages have equally many."""
    return model.stage.size * len(model.blocks)


def parameter_layout(model: CausalLM, targets: Sequence[str], rank: int) -> ParameterLayout:
    """Layout of an adapter for these modules of the whole model, whatever part this rank has; layers are alike.
    targets: last parts of the names of linears, as PEFT's `target_modules`; empty: all of a block's. Raises
    InvalidRequest naming a target that the model does not have."""
    _, block = next(model.named_blocks())
    prefixes = [f"{model.layer_prefix}{number}." for number in range(num_layers(model))]
    linears = [linear.below(prefix) for prefix in prefixes for linear in block.linears()]
    sites = {name: site for linear in linears for name, site in _sites(linear).items()}
    kinds = {name.rpartition(".")[2] for name in sites}
    for target in targets:
        if target not in kinds:
            raise InvalidRequest(
                f"targets: the model has no linear layer {target!r}; it has {', '.join(sorted(kinds))}", param="targets"
            )
    chosen = {name: site for name, site in sites.items() if not targets or name.rpartition(".")[2] in targets}
    return ParameterLayout(chosen, rank)


def layouts_of_stages(model: CausalLM, layout: ParameterLayout) -> list[ParameterLayout]:
    """The part of the layout that each stage has, in stage order."""
    size = model.stage.size
    of_layers = [layers_of(PlannedStage(size, index), num_layers(model)) for index in range(size)]
    prefixes = [tuple(f"{model.layer_prefix}{number}." for number in layers) for layers in of_layers]
    return [
        replace(layout, sites={name: site for name, site in layout.sites.items() if name.startswith(names)})
        for names in prefixes
    ]


def _sites(linear: NamedLinear) -> Mapping[str, AdapterSite]:
    """Sites of the whole linear, whatever part of it this rank has."""
    parts = zip(linear.names, linear.linear.out_features, linear.linear.weight_shards, strict=True)
    shapes = {name: (shard, (size, linear.linear.in_features)) for name, size, shard in parts}
    whole = {name: own if shard is None else shard.whole_shape(own) for name, (shard, own) in shapes.items()}
    return {name: AdapterSite(in_features, out_features) for name, (out_features, in_features) in whole.items()}
