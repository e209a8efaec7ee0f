"""A model of transformers as one of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kernels.grouped_product import tokens_of_each_config
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.embedding import HoldsWeight, OutputHead
from service.layers.layer import Layer
from service.layers.linear import NamedLinear, linear_tensors
from service.layers.shard import Shard
from service.layers.weight_storage import Destination
from service.models.causal_lm import CausalLM
from service.models.transformers_backend.attention import CurrentStep, PagedStep
from service.models.transformers_backend.checkpoint_names import CheckpointNames
from service.models.transformers_backend.experts import is_computed_here
from service.models.transformers_backend.fusions import use_our_norms
from service.models.transformers_backend.linears import use_our_linears


class TransformersModel(CausalLM):
    """model: on the meta device, with our attention, and then a part of this one; its step. linears: of the probe."""

    def __init__(self, model: PreTrainedModel, current: CurrentStep, linears: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self._current = current
        self._names = CheckpointNames(model)
        self._prefix = model.base_model_prefix
        self._kept_in_fp32 = _fp32_names(model)
        self.base = model.base_model
        self._initialize: Callable[[nn.Module], None] = model._init_weights
        self._linears = use_our_linears(self.base, linears)
        use_our_norms(self.base)
        self._blocks = _by_block(self._linears)
        self.head = _head(model)
        model.set_output_embeddings(_Rows(self.head))
        setattr(model, self._prefix, _HiddenStates())
        self.shell = model

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
        received: Tensor | None = None,
    ) -> Tensor:
        with self._current.answered_by(PagedStep(caches, attention)):
            made = self.base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden = made.last_hidden_state[0]
        return hidden if attention.last is None else attention.last.narrow(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """By the model's own head, which may scale or cap them."""
        return self.shell(inputs_embeds=hidden[None], use_cache=False).logits[0]

    def block_linears(self) -> Sequence[Sequence[NamedLinear]]:
        return [[each.below(f"{self._prefix}.") for each in block] for block in self._blocks]

    def checkpoint_tensors(self) -> dict[str, Destination]:
        table: dict[str, Destination] = {
            f"{self._prefix}.{name}": tensor for name, tensor in _own_tensors(self.base).items()
        }
        table |= linear_tensors(each.below(f"{self._prefix}.") for each in self._linears)
        return table | self.head.checkpoint_tensors()

    def checkpoint_places(self, stored: Collection[str]) -> dict[str, Destination]:
        return self._names.places(stored, self.checkpoint_tensors())

    def ignored_checkpoint_names(self) -> frozenset[str]:
        return self.head.ignored_checkpoint_names()

    def checkpoint_shards(self) -> dict[str, Shard]:
        """One rank has it all."""
        return {}

    @property
    def rows_of_each_kernel(self) -> Sequence[int]:
        experts = {
            cast(Tensor, module.gate_up_proj).shape[0] for module in self.base.modules() if is_computed_here(module)
        }
        top_k = getattr(self.shell.config.get_text_config(), "num_experts_per_tok", None) or 1
        return sorted({rows for num_experts in experts for rows in tokens_of_each_config(num_experts, top_k)})

    def materialize(self, dtype: torch.dtype, device: torch.device) -> None:
        """Buffers, too: transformers' own initialization fills those that no checkpoint holds."""
        super().materialize(dtype, device)
        for name, module in self.base.named_modules():
            for child, parameter in module.named_parameters(recurse=False):
                parameter._is_hf_initialized = True  # the checkpoint's
                if self._kept_in_fp32 is not None and self._kept_in_fp32.search(f"{name}.{child}"):
                    parameter.data = parameter.data.float()
            buffers = dict(module.named_buffers(recurse=False))
            for child, buffer in buffers.items():
                module._buffers[child] = torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)
            if buffers:
                self._initialize(module)


class _HiddenStates(nn.Module):
    """In the place of the model below its head: hands on what it is given."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _Made:
        return _Made(inputs_embeds)

    @property
    def decoder(self) -> _HiddenStates:
        """Some heads ask a part of the model below them."""
        return self


class _Made:
    """What a model below its head returns, of whichever kind: a head passes the other fields on."""

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


def _head(model: PreTrainedModel) -> OutputHead:
    theirs, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    is_tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    tied = cast(HoldsWeight, embedding) if is_tied else None
    return OutputHead(theirs.out_features, theirs.in_features, tied, bias=theirs.bias is not None)


def _own_tensors(base: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of transformers' modules, which checkpoints hold, by their names below `base`."""
    table: dict[str, Tensor] = {}
    for name, module in base.named_modules():
        if not isinstance(module, Layer):
            inside = f"{name}." if name else ""
            table |= {f"{inside}{child}": each.detach() for child, each in module.named_parameters(recurse=False)}
            table |= {
                f"{inside}{child}": each
                for child, each in module.named_buffers(recurse=False)
                if child not in module._non_persistent_buffers_set
            }
    return table


def _by_block(linears: Sequence[NamedLinear]) -> list[list[NamedLinear]]:
    """By the number in their names, which is their block's."""
    blocks: dict[int, list[NamedLinear]] = {}
    for each in linears:
        number = re.search(r"(?:^|\.)(\d+)\.", each.names[0])
        if number is not None:
            blocks.setdefault(int(number[1]), []).append(each)
    return [blocks[index] for index in sorted(blocks)]


def _fp32_names(model: PreTrainedModel) -> re.Pattern[str] | None:
    names = model._keep_in_fp32_modules_strict or ()
    return re.compile("|".join(sorted(names))) if names else None
