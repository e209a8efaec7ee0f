"""A transformers model as one of our models."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from kernels.grouped_product import tokens_of_each_config
from service.errors import ConfigError, ModelLoadError
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.embedding import OutputHead
from service.layers.layer import Layer
from service.layers.linear import NamedLinear, linear_tensors
from service.layers.pipeline_stage import PipelineStage, is_first, is_last, layers_of
from service.layers.projection import Projection
from service.layers.shard import Shard
from service.layers.tensor_parallel import Silent, TensorParallel
from service.layers.weight_storage import Destination, WeightStorage
from service.models.causal_lm import CausalLM
from service.models.quantization import Quantization
from service.models.rank_division import check_sizes
from service.models.transformers_backend.attention import AttentionCall, CurrentStep, PagedStep
from service.models.transformers_backend.checkpoint_names import CheckpointNames
from service.models.transformers_backend.division import Division, Heads
from service.models.transformers_backend.experts import is_computed_here
from service.models.transformers_backend.fusions import use_our_norms
from service.models.transformers_backend.layer_fusion import fuse_layers
from service.models.transformers_backend.linears import use_our_linears
from service.models.transformers_backend.probe import NUM_TOKENS, Probe, Recorder, first_sentence
from service.models.transformers_backend.rotary_tables import RotaryTables
from service.models.transformers_backend.stage_layers import StageLayers
from service.models.transformers_backend.vocabulary import Vocabulary

_OTHERWISE = {
    "tensor-parallel-size": "pipeline-parallel-size",
    "pipeline-parallel-size": "tensor-parallel-size",
}


class TransformersModel(CausalLM):
    """model: on the meta device, with our attention; it becomes a part of this one. current: its step. made: the result
    of its probe."""

    def __init__(self, model: PreTrainedModel, current: CurrentStep, made: Probe) -> None:
        super().__init__()
        self._current = current
        self._names = CheckpointNames(model)
        self._prefix = model.base_model_prefix
        self._kept_in_fp32 = _fp32_names(model)
        self.base = model.base_model
        self._text = model.config.get_text_config()
        self.hidden_size = self._text.hidden_size
        self._stages = StageLayers(self.base, made)
        self._heads = Heads(made.calls[0].query.shape[1], made.calls[0].key.shape[1])
        self._num_layers = len(made.calls)
        self._linears = use_our_linears(self.base, made.linears)
        use_our_norms(self.base)
        division = Division(self.base, self._text, self._linears, self._heads)
        self._fusion = fuse_layers(self.base, made, current, model._init_weights, division.divides_heads)
        self._linears = [self._fusion.named(each) for each in self._linears]
        self._vocabulary = Vocabulary(model)
        self.head = self._vocabulary.head
        model.set_output_embeddings(_Rows(self.head))
        setattr(model, self._prefix, _HiddenStates())
        self.shell = model
        self._elsewhere: frozenset[str] = frozenset()
        self._own_shards: dict[str, Shard] = {}

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
        received: Tensor | None = None,
    ) -> Tensor:
        narrows = self._fusion.narrows
        with self._current.answered_by(PagedStep(caches, attention, narrows=narrows)):
            hidden = self._hidden(token_ids, positions, received)
        return hidden if attention.last is None or narrows else attention.last.narrow(hidden)

    def _hidden(self, token_ids: Tensor, positions: Tensor, received: Tensor | None) -> Tensor:
        if received is None:
            made = self.base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        else:  # what it computes before the layers is replaced
            self._stages.receive(received)
            made = self.base(inputs_embeds=received[None], position_ids=positions[None], use_cache=False)
        return made.last_hidden_state[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """With the model's own head, which may scale or cap the logits."""
        return self.shell(inputs_embeds=hidden[None], use_cache=False).logits[0]

    def block_linears(self) -> Sequence[Sequence[NamedLinear]]:
        return [[each.below(f"{self._prefix}.") for each in block] for block in _by_block(self._linears)]

    def check_quantizes(self, quantization: Quantization) -> None:
        """Raises ModelLoadError if not all of its large weights are our linears, which alone can stay quantized."""
        if quantization.is_dequantized_at_load:
            return
        if any(isinstance(getattr(module, "gate_up_proj", None), Tensor) for module in self.base.modules()):
            setting = "quantization" if quantization.is_at_load else "config.json: quantization_config"
            raise ModelLoadError(
                f"{setting}: {type(self.base).__name__} is a mixture of experts by transformers' modules, whose experts"
                " cannot be quantized; serve the unquantized checkpoint, without --quantization"
            )

    @property
    def is_row_invariant(self) -> bool:
        """Unknown, because it depends on the modules' own operations."""
        return False

    def checkpoint_tensors(self) -> dict[str, Destination]:
        table: dict[str, Destination] = {
            f"{self._prefix}.{name}": self._vocabulary.without_padding(tensor).detach()
            for name, tensor in _own_tensors(self.base).items()
        }
        table |= linear_tensors(each.below(f"{self._prefix}.") for each in self._linears)
        return table | self.head.checkpoint_tensors() if is_last(self.stage) else table

    def checkpoint_places(self, stored: Collection[str]) -> dict[str, Destination]:
        return self._names.places(stored, self.checkpoint_tensors())

    def ignored_checkpoint_names(self) -> frozenset[str]:
        return self.ignored_head_names()

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or _module_of(self._names.own_name(name)) in self._elsewhere

    def checkpoint_shards(self) -> dict[str, Shard]:
        if self.parallel.size == 1:
            return {}
        shards = {f"{self._prefix}.{name}": shard for name, shard in self._own_shards.items()}
        for names, linear, _ in self._linears:
            shards |= linear.checkpoint_shards(*(f"{self._prefix}.{name}" for name in names))
        return shards | self.head.checkpoint_shards() if is_last(self.stage) else shards

    def stored_shards(self, stored: Collection[str]) -> dict[str, Shard]:
        return self._names.shards(stored, self.checkpoint_shards())

    def cut(self, stage: PipelineStage) -> None:
        """Modules before the layers, except the embedding, stay on every stage; their output is ignored."""
        whole, kept = self.checkpoint_tensors().keys(), layers_of(stage, self._num_layers)
        self.stage, self.first_layer = stage, kept.start
        self._stages.keep(kept)
        self._fusion.keep(kept)
        if not self.has_embedding:
            cast(PreTrainedModel, self.base).set_input_embeddings(nn.Identity())
        if not is_last(stage):
            del self.head, self.shell
        there = {id(module) for module in self.base.modules()}
        self._linears = [each for each in self._linears if id(each.linear) in there]
        left = self.checkpoint_tensors().keys()
        self._elsewhere = frozenset(map(_module_of, whole - left)) - frozenset(map(_module_of, left))
        self._trial()._try("pipeline-parallel-size", "some layers", self._num_layers // stage.size, self._heads)

    def shard(self, parallel: TensorParallel) -> None:
        division = Division(self.base, self._text, self._linears, self._heads)
        check_sizes(division.sizes(), parallel.size)
        trial = self._trial()
        trial._divide(Division(trial.base, trial._text, trial._linears, trial._heads), Silent(parallel.size))
        heads = self._heads.of_rank(parallel)
        num_layers = self._num_layers // self.stage.size
        some = Heads(len(heads.queries), len(heads.keys))
        trial._try("tensor-parallel-size", "some heads", num_layers, some)
        self._divide(division, parallel)

    def _divide(self, division: Division, parallel: TensorParallel) -> None:
        self.parallel = parallel
        self._own_shards = division.carry_out(parallel)
        self._current.heads = self._heads.of_rank(parallel)
        if is_last(self.stage):
            self._vocabulary.shard(parallel)

    def _trial(self) -> TransformersModel:
        """A copy without memory, in one dtype."""
        return copy.deepcopy(self, {id(self.stage): self.stage}).float()

    def try_step(self) -> Sequence[AttentionCall]:
        """Compute a small step on the meta device, before there is memory. Returns its calls of attention. Raises
        ValueError if the step has another form, and whatever the modules raise."""
        recorder, like = Recorder(), torch.empty(NUM_TOKENS, self.hidden_size, device="meta")
        positions = torch.zeros(NUM_TOKENS, dtype=torch.int64, device="meta")
        with self._current.answered_by(recorder):
            hidden = self._hidden(positions, positions, None if is_first(self.stage) else like)
            if is_last(self.stage):
                self.compute_logits(like)
        if hidden.shape != like.shape:
            raise ValueError(f"the layers return {hidden.shape}")
        return recorder.calls

    def _try(self, setting: str, what: str, num_layers: int, heads: Heads) -> None:
        """Try a step with this trial as it is now. Raises ConfigError naming the setting."""
        try:
            with torch.device("meta"):
                calls = self.try_step()
            shapes = {(call.query.shape[1], call.key.shape[1]) for call in calls}
            if len(calls) != num_layers or shapes != {heads}:
                raise ValueError(f"{len(calls)} layers use heads {shapes}")
        except Exception as fault:  # it is others' code: anything may come
            raise ConfigError(
                f"{setting}: transformers' {type(self.base).__name__} cannot compute only {what}:"
                f" {first_sentence(fault)}; serve it on one GPU, or try {_OTHERWISE[setting]}"
            ) from fault

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        return self._fusion.add_norm_fusions() if self.parallel.size == 1 else ()

    def build_positions(self, num_positions: int, device: torch.device) -> None:
        for module in self.modules():
            if isinstance(module, RotaryTables):
                module.build(num_positions, device)

    @property
    def rows_of_each_kernel(self) -> Sequence[int]:
        experts = {
            cast(Tensor, module.gate_up_proj).shape[0] for module in self.base.modules() if is_computed_here(module)
        }
        top_k = getattr(self._text, "num_experts_per_tok", None) or 1
        return sorted({rows for num_experts in experts for rows in tokens_of_each_config(num_experts, top_k)})

    def materialize(self, dtype: torch.dtype, device: torch.device) -> None:
        """Also the buffers: transformers' own initialization fills those that no checkpoint holds."""
        super().materialize(dtype, device)
        for name, module in self.base.named_modules():
            for child, parameter in module.named_parameters(recurse=False):
                parameter._is_hf_initialized = True  # filled by the checkpoint
                if self._kept_in_fp32 is not None and self._kept_in_fp32.search(f"{name}.{child}"):
                    parameter.data = parameter.data.float()
            buffers = {} if isinstance(module, WeightStorage) else dict(module.named_buffers(recurse=False))
            for child, buffer in buffers.items():
                module._buffers[child] = torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)
            if buffers:
                _owner(self.base, name)._init_weights(module)


class _HiddenStates(nn.Module):
    """Stands for the model below the head: returns its input."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _Made:
        return _Made(inputs_embeds)

    @property
    def decoder(self) -> _HiddenStates:
        """Some heads use a part of the model below them."""
        return self


class _Made:
    """Stands for any kind of output of the model below the head: a head passes the other fields on."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]


class _Rows(Layer):
    """The head for [1, N, hidden_size]."""

    def __init__(self, head: OutputHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[0])[None]


def _own_tensors(base: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of transformers' modules that checkpoints hold, by their names below `base`."""
    table: dict[str, Tensor] = {}
    for name, module in base.named_modules():
        if not isinstance(module, Projection | WeightStorage):
            inside = f"{name}." if name else ""
            table |= {f"{inside}{child}": each for child, each in module.named_parameters(recurse=False)}
            table |= {
                f"{inside}{child}": each
                for child, each in module.named_buffers(recurse=False)
                if child not in module._non_persistent_buffers_set
            }
    return table


def _owner(base: nn.Module, name: str) -> PreTrainedModel:
    """The innermost of transformers' models that the module is in, or is: it knows how to fill the module's buffers."""
    parts = name.split(".") if name else []
    inside = [base.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) + 1)]
    return next(each for each in reversed(inside) if isinstance(each, PreTrainedModel))


def _module_of(tensor: str) -> str:
    """The module's name, because a quantized weight has tensors of other names in the same module."""
    return tensor.rpartition(".")[0]


def _by_block(linears: Sequence[NamedLinear]) -> list[list[NamedLinear]]:
    """Grouped by the number in their names, which is the block's."""
    blocks: dict[int, list[NamedLinear]] = {}
    for each in linears:
        number = re.search(r"(?:^|\.)(\d+)\.", each.names[0])
        if number is not None:
            blocks.setdefault(int(number[1]), []).append(each)
    return [blocks[index] for index in sorted(blocks)]


def _fp32_names(model: PreTrainedModel) -> re.Pattern[str] | None:
    names = model._keep_in_fp32_modules_strict or ()
    return re.compile("|".join(sorted(names))) if names else None
