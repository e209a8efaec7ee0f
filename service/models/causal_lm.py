"""What every architecture offers. The runner and the weight loader see nothing else of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from service.layers.attention import AttentionInputs, LayerCache
from service.layers.gated_mlp import GatedMlp
from service.layers.kernel_choices import choose_kernels
from service.layers.layer import Layer
from service.layers.packed_weight import choose_forms
from service.layers.projection import Projection
from service.layers.rotary import RotaryEmbedding
from service.layers.stream_joint import StreamJoint


class CausalLM(Layer, ABC):
    """Token ids to hidden states to logits, over a paged KV cache, for a flat batch of T tokens.

    Its life: constructed (on the meta device, so without memory) -> `materialize` -> weights written through
    `checkpoint_tensors` -> `prepare` -> forward.
    """

    @abstractmethod
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
    ) -> Tensor:
        """token_ids, positions [T] int64. caches: of each layer, to which the tokens' keys and values are written.

        Returns the last layer's output, [T, hidden_size], or [N, hidden_size] of the rows where it is read
        (`AttentionInputs.read_at`).
        """

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size]: rows of what `forward` returned. Returns [N, vocab_size]."""

    @abstractmethod
    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """By the exact name of each tensor in a checkpoint the part of a parameter that it is to be copied to."""

    @abstractmethod
    def ignored_checkpoint_names(self) -> frozenset[str]:
        """Names of tensors that a checkpoint may hold although the model does not need them."""

    def stream_joints(self) -> Sequence[StreamJoint]:
        """The places where a branch joins the residual stream and another begins (service/layers/stream_joint.py); ()
        to compute them plainly."""
        return ()

    @property
    def optional_prefix(self) -> str:
        """A prefix of the names that a checkpoint may leave out of all of them, as one without an output head does."""
        return ""

    def materialize(self, dtype: torch.dtype, device: torch.device) -> None:
        """Give the parameters memory; their values are undefined.

        Not by `to_empty`: to ask whether a tensor is a fake one, torch imports sympy for it, 1.7 s of a start.
        """
        for module in self.modules():
            for name, shape_of in module.named_parameters(recurse=False):
                values = torch.empty(shape_of.shape, dtype=dtype, device=device)
                module.register_parameter(name, nn.Parameter(values, requires_grad=shape_of.requires_grad))

    def prepare(
        self,
        num_positions: int,
        device: torch.device,
        in_two_forms: bool = True,
        also_launch: Callable[[], object] = lambda: None,
    ) -> None:
        """Make ready for inference at positions below `num_positions`; no weight can be written afterwards.

        Here the ways to multiply are timed and chosen, on a GPU and on a CPU. in_two_forms: on a CPU there is memory
        for a second form of the weights, which is faster for small batches (service/layers/packed_weight.py).
        also_launch: on a GPU, called once, may use the model and is launched for nothing but to compile its kernels
        beside those between which is chosen (kernels/compile_ahead.py).
        """
        modules = list(self.modules())
        projections = [module for module in modules if isinstance(module, Projection)]
        for module in modules:
            if isinstance(module, RotaryEmbedding):
                module.build(num_positions, device)
        if device.type == "cuda":
            mlps = [module for module in modules if isinstance(module, GatedMlp)]
            choose_kernels(projections, mlps, self.stream_joints(), device, also_launch)
        else:
            packed = [projection.pack(in_two_forms) for projection in projections]
            choose_forms([weight for weight in packed if weight is not None])
        self.settle()
