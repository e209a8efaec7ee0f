"""What every architecture offers. The runner and the weight loader use nothing else of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from kernels.quantized_weight import FP8
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.embedding import HEAD_NAME, OutputHead, TokenEmbedding
from service.layers.layer import Layer
from service.layers.linear import NamedLinear
from service.layers.linear_method import KernelRows
from service.layers.mixture_of_experts import MixtureOfExperts
from service.layers.pipeline_stage import WHOLE, PipelineStage, is_first, is_last, layers_of
from service.layers.projection import Projection
from service.layers.rotary import RotaryEmbedding
from service.layers.shard import Shard
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.layers.weight_storage import Destination, WeightStorage
from service.models.block import Block


class CausalLM(Layer, ABC):
    """Token ids to hidden states to logits, over a paged KV cache, for a flat batch of T tokens.

    Life cycle:
      constructed          on the meta device, so without memory
      `cut`                if it is one pipeline stage of several
      `shard`              if several ranks compute each layer
      `store`              of quantized weights (quantized_model.py)
      `materialize`        then the weights are written through `checkpoint_tensors`
      `finish_reading`
      `build_positions`    then each of `projections` gets its method; without one it multiplies by its plain weight
      `settle`             then `forward`

    hidden_size: of what stages hand over. first_layer: of this stage. dtype: set by `materialize`.
    """

    embedding: TokenEmbedding
    head: OutputHead
    blocks: nn.ModuleList
    parallel: TensorParallel = ALONE
    stage: PipelineStage = WHOLE
    first_layer = 0
    hidden_size: int
    dtype: torch.dtype
    _other_layers: frozenset[int] = frozenset()
    _other_ends: frozenset[str] = frozenset()

    @abstractmethod
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        attention: AttentionInputs,
        received: Tensor | None = None,
    ) -> Tensor:
        """token_ids, positions [T] int64. caches: per layer; the tokens' keys and values are written there. received
        [T, hidden_size]: the hidden states from the previous stage, instead of the embedding; overwritten.

        Returns the last layer's output: [T, hidden_size], or [N, hidden_size] if only some rows are read
        (`AttentionInputs.read_at`). On a stage before the last one, what is sent to the next stage.
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size]: rows of what `forward` returned. Returns [N, vocab_size]; with several ranks the
        logits of this rank's ids (`OutputHead.ids`), followed by padding."""
        return self.head(hidden)

    def named_blocks(self) -> Iterator[tuple[str, Block]]:
        """This stage's blocks, each with the prefix of its tensors' names in a checkpoint."""
        for number, block in enumerate(self.blocks, self.first_layer):
            assert isinstance(block, Block)
            yield f"{self.layer_prefix}{number}.", block

    def block_linears(self) -> Sequence[Sequence[NamedLinear]]:
        """The linears of each block (what adapters change), with their names in a checkpoint."""
        return [[linear.below(prefix) for linear in block.linears()] for prefix, block in self.named_blocks()]

    def block_tensors(self) -> dict[str, Destination]:
        """`checkpoint_tensors` of all blocks."""
        return {
            prefix + name: tensor
            for prefix, block in self.named_blocks()
            for name, tensor in block.checkpoint_tensors().items()
        }

    def mixtures(self) -> Sequence[tuple[str, MixtureOfExperts]]:
        """The mixtures of experts, each with the prefix of its tensors' names in a checkpoint."""
        return ()

    def checkpoint_tensors(self) -> dict[str, Destination]:
        """Name of a tensor in a checkpoint -> the part of a parameter to copy it to."""
        table: dict[str, Destination] = {}
        if self.has_embedding:
            table |= self.embedding.checkpoint_tensors(self.embedding_name)
        if is_first(self.stage):
            table |= self.tensors_before_layers()
        if is_last(self.stage):
            table |= self.tensors_behind_layers()
            table |= self.head.checkpoint_tensors()
        return table | self.block_tensors()

    def tensors_before_layers(self) -> Mapping[str, Destination]:
        """Those of `checkpoint_tensors` between embedding and layers."""
        return {}

    def tensors_behind_layers(self) -> Mapping[str, Destination]:
        """Those of `checkpoint_tensors` between layers and head."""
        return {}

    def checkpoint_places(self, stored: Collection[str]) -> dict[str, Destination]:
        """`checkpoint_tensors`, by the names in a checkpoint that holds `stored`. They may differ from the model's own
        names, which remain for what is missing. Raises ModelLoadError for a tensor whose form is not read."""
        own = self.checkpoint_tensors()
        prefix = self.optional_prefix
        short = {
            prefix + name: name
            for name in stored
            if name not in own and prefix + name in own and prefix + name not in stored
        }
        return {short.get(name, name): tensor for name, tensor in own.items()}

    @abstractmethod
    def ignored_checkpoint_names(self) -> frozenset[str]:
        """Names of tensors that a checkpoint may hold although the model does not need them."""

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint may hold a tensor of this name that the model does not need."""
        ignored, full = self.ignored_checkpoint_names(), self.optional_prefix + name
        return name in ignored or full in ignored or self._is_elsewhere(name) or self._is_elsewhere(full)

    def _is_elsewhere(self, name: str) -> bool:
        """Whether the tensor belongs to another stage."""
        before, _, behind = name.partition(self.layer_prefix)
        number = behind.partition(".")[0]
        is_other = not before and number.isdecimal() and int(number) in self._other_layers
        return is_other or name.rpartition(".")[0] in self._other_ends

    def checkpoint_shards(self) -> dict[str, Shard]:
        """For each of `checkpoint_tensors` that is a part of a stored tensor, which part. The others have no entry."""
        if self.parallel.size == 1:
            return {}
        shards = self.embedding.checkpoint_shards(self.embedding_name) if self.has_embedding else {}
        if is_last(self.stage):
            shards |= self.head.checkpoint_shards()
        for linears in self.block_linears():
            for names, linear, _ in linears:
                shards |= linear.checkpoint_shards(*names)
        return shards

    def stored_shards(self, stored: Collection[str]) -> dict[str, Shard]:
        """`checkpoint_shards` by the names of `checkpoint_places`, where the optional prefix may be missing."""
        shards = self.checkpoint_shards()
        return shards | {name.removeprefix(self.optional_prefix): shard for name, shard in shards.items()}

    @property
    def is_row_invariant(self) -> bool:
        """Whether every row of a forward pass gets the same bits as it would alone, given that products sum in one
        order (`Projection.order_sums`) and attention treats every sequence as a prompt (`AttentionInputs.prefill`).
        Valid once the projections have their methods."""
        return all(block.is_row_invariant for _, block in self.named_blocks()) and self.sums_can_be_ordered

    @property
    def sums_can_be_ordered(self) -> bool:
        """Whether all products can sum in one order and no other sum follows them. Sums over several GPUs do not
        qualify: their kernels add few rows differently from many."""
        projections = self.projections
        is_alone = self.parallel.size == 1 or not isinstance(projections[0].own_method.choice, KernelRows)
        return is_alone and all(projection.can_order_sums for projection in projections)

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        """The places where add and norm may be fused with the products around them; () for none."""
        return ()

    @property
    def embedding_name(self) -> str:
        """Its name in a checkpoint."""
        return "model.embed_tokens.weight"

    def ignored_head_names(self) -> frozenset[str]:
        """A tied head may have been saved all the same."""
        return self.head.ignored_checkpoint_names() if is_last(self.stage) else frozenset({HEAD_NAME + ".weight"})

    @property
    def layer_prefix(self) -> str:
        """Prefix of the layers' tensors in a checkpoint; a layer's number follows it."""
        return "model.layers."

    @property
    def has_embedding(self) -> bool:
        """True on the first stage, and on the last one if its head is tied to the embedding."""
        return is_first(self.stage) or (is_last(self.stage) and self.head.is_tied)

    @property
    def ends(self) -> tuple[Sequence[str], Sequence[str]]:
        """The submodules before the layers, and those after them."""
        return ("embedding",), ("norm", "head")

    @property
    def optional_prefix(self) -> str:
        """A prefix that a checkpoint may leave out of all names, as checkpoints without an output head do."""
        return ""

    def cut(self, stage: PipelineStage) -> None:
        """Keep only this stage's layers, embedding and head."""
        num_layers, whole = len(self.blocks), self.checkpoint_tensors().keys()
        layers = layers_of(stage, num_layers)
        self.stage, self.first_layer = stage, layers.start
        self.blocks = self.blocks[layers.start : layers.stop]
        first, last = self.ends
        gone = set(() if is_first(stage) else first) | set(() if is_last(stage) else last)
        for name in gone - ({"embedding"} if self.has_embedding else set()):
            delattr(self, name)
        self._other_layers = frozenset(range(num_layers)) - frozenset(layers)
        there = self.checkpoint_tensors().keys()
        self._other_ends = frozenset(n.rpartition(".")[0] for n in whole - there if not n.startswith(self.layer_prefix))

    def shard(self, parallel: TensorParallel) -> None:
        self.parallel = parallel
        for module in self.modules():
            if isinstance(module, Layer) and module is not self:
                module.shard(parallel)

    def finish_reading(self, dtype: torch.dtype) -> None:
        """All weights have been written: convert quantized ones to what is multiplied by, one after another."""
        for projection in self.projections:
            projection.finish_reading(dtype)
        for _, mixture in self.mixtures():
            mixture.finish_reading(dtype)

    def materialize(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the parameters (floating ones in `dtype`, the model's from now on) and the buffers that quantized
        weights are read into. Values are undefined.

        Not with `to_empty`: to check for fake tensors, torch would import sympy, 1.7 s of a start.
        """
        self.dtype = dtype
        for module in self.modules():
            for name, shape_of in module.named_parameters(recurse=False):
                own_dtype = dtype if shape_of.is_floating_point() else shape_of.dtype
                values = torch.empty(shape_of.shape, dtype=own_dtype, device=device)
                module.register_parameter(name, nn.Parameter(values, requires_grad=shape_of.requires_grad))
            is_read_into = isinstance(module, WeightStorage | MixtureOfExperts)
            for name, like in module.named_buffers(recurse=False) if is_read_into else ():
                module.register_buffer(name, torch.empty(like.shape, dtype=like.dtype, device=device))

    def weights_bytes(self, dtype: torch.dtype, device: torch.device) -> int:
        """The most bytes that the weights take on a device. On a CPU quantized experts may have to be made plain."""
        experts = [mixture for _, mixture in self.mixtures()] if device.type == "cpu" else []
        plain = [mixture for mixture in experts if not mixture.stays_quantized(dtype)]
        of_bytes = 2 * dtype.itemsize if plain else 1
        tensors = self.checkpoint_tensors().values()
        made_plain = sum(each.num_made_plain for each in self.projections)
        made_plain += sum(mixture.num_made_plain_on(device, dtype) for _, mixture in self.mixtures())
        return made_plain * dtype.itemsize + sum(_num_bytes(each, dtype, of_bytes) for each in tensors)

    def fit_cpu(self, dtype: torch.dtype) -> None:
        """Once the weights are written: convert those whose form only GPU kernels support."""
        for _, mixture in self.mixtures():
            mixture.fit_cpu(dtype)

    @property
    def rows_of_each_kernel(self) -> Sequence[int]:
        """Numbers of rows, besides the usual ones, that launch kernels of their own; ascending."""
        return sorted({rows for _, mixture in self.mixtures() for rows in mixture.rows_of_each_kernel})

    def build_positions(self, num_positions: int, device: torch.device) -> None:
        """Make the tables for positions below `num_positions`."""
        for module in self.modules():
            if isinstance(module, RotaryEmbedding):
                module.build(num_positions, device)

    @property
    def multiplies_in_registers(self) -> bool:
        """Whether products of few rows use kernels/register_product.py, which takes little shared memory and reads
        scales and rows from the L1 cache again and again. Valid once the weights are loaded."""
        return any(projection.is_quantized for projection in self.projections)

    @property
    def projections(self) -> Sequence[Projection]:
        """In the order in which they are computed, except that the head may come anywhere."""
        return [module for module in self.modules() if isinstance(module, Projection)]


def _num_bytes(there: Destination, dtype: torch.dtype, of_bytes: int) -> int:
    """of_bytes: how many bytes one byte of packed numbers becomes."""
    if not isinstance(there, Tensor) or there.dtype in (torch.int32, FP8):
        return there.nbytes
    return there.numel() * (dtype.itemsize if there.is_floating_point() else of_bytes)
