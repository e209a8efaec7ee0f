"""What every architecture offers. The runner and the weight loader see nothing else of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

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

    Its life: constructed (on the meta device, so without memory) -> `cut` if it is one stage of several -> `shard` if
    several ranks compute each layer -> `store` of quantized weights (quantized_model.py) -> `materialize` -> weights
    written through `checkpoint_tensors` -> `finish_reading` -> `build_positions` -> each of `projections` has got its
    method -> `settle` -> forward. A projection without one multiplies by its plain weight.

    hidden_size: of what stages hand over. first_layer: of this stage. dtype: from `materialize` on.
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
        """token_ids, positions [T] int64. caches: of each layer, to which the tokens' keys and values are written.
        received [T, hidden_size]: what the stage before has handed over, in the embedding's place; overwritten.

        Returns the last layer's output, [T, hidden_size], or [N, hidden_size] of the rows where it is read
        (`AttentionInputs.read_at`); of a stage before the last one, what is to be handed over.
        """

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size]: rows of what `forward` returned. Returns [N, vocab_size], or of one rank of several
        those of its own ids (`OutputHead.ids`), and padding behind them."""

    def named_blocks(self) -> Iterator[tuple[str, Block]]:
        """This stage's, each behind what stands before its tensors' names in a checkpoint."""
        for number, block in enumerate(self.blocks, self.first_layer):
            assert isinstance(block, Block)
            yield f"{self.layer_prefix}{number}.", block

    def block_linears(self) -> Sequence[Sequence[NamedLinear]]:
        """Of each block the linears, which is what adapters change, by their names in a checkpoint."""
        return [[linear.below(prefix) for linear in block.linears()] for prefix, block in self.named_blocks()]

    def block_tensors(self) -> dict[str, Destination]:
        """`checkpoint_tensors` of the blocks."""
        return {
            prefix + name: tensor
            for prefix, block in self.named_blocks()
            for name, tensor in block.checkpoint_tensors().items()
        }

    def mixtures(self) -> Sequence[tuple[str, MixtureOfExperts]]:
        """The mixtures of experts, and what stands before their names in a checkpoint."""
        return ()

    @abstractmethod
    def checkpoint_tensors(self) -> dict[str, Destination]:
        """By the exact name of each tensor in a checkpoint the part of a parameter that it is to be copied to."""

    def checkpoint_places(self, stored: Collection[str]) -> dict[str, Destination]:
        """`checkpoint_tensors` for a checkpoint with tensors of these names: by these where they differ from the
        model's own, which remain for what is missing. Raises ModelLoadError for one whose form is not read."""
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
        """Whether the tensor is another stage's."""
        before, _, behind = name.partition(self.layer_prefix)
        number = behind.partition(".")[0]
        is_other = not before and number.isdecimal() and int(number) in self._other_layers
        return is_other or name.rpartition(".")[0] in self._other_ends

    def checkpoint_shards(self) -> dict[str, Shard]:
        """Of those of `checkpoint_tensors` that are parts of stored tensors, which part; of others there is none."""
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
        """`checkpoint_shards` by the names of `checkpoint_places`: the prefix may be left out."""
        shards = self.checkpoint_shards()
        return shards | {name.removeprefix(self.optional_prefix): shard for name, shard in shards.items()}

    @property
    def is_row_invariant(self) -> bool:
        """Whether every row of a forward pass has the bits that it has alone, where products sum in one order
        (`Projection.order_sums`) and attention takes every sequence as a prompt (`AttentionInputs.prefill`). Once the
        projections have their methods."""
        return all(block.is_row_invariant for _, block in self.named_blocks()) and self.sums_can_be_ordered

    @property
    def sums_can_be_ordered(self) -> bool:
        """Whether all products can sum in one order, and no other sum comes behind them: several GPUs add by kernels
        that tell few rows from many."""
        projections = self.projections
        is_alone = self.parallel.size == 1 or not isinstance(projections[0].own_method.choice, KernelRows)
        return is_alone and all(projection.can_order_sums for projection in projections)

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        """The places where add and norm may be fused with the products around them; () to compute them one by one."""
        return ()

    @property
    def embedding_name(self) -> str:
        """In a checkpoint."""
        return "model.embed_tokens.weight"

    def ignored_head_names(self) -> frozenset[str]:
        """A tied head that was saved all the same."""
        return self.head.ignored_checkpoint_names() if is_last(self.stage) else frozenset({HEAD_NAME + ".weight"})

    @property
    def layer_prefix(self) -> str:
        """Of the names of the layers' tensors in a checkpoint; a layer's number comes behind it."""
        return "model.layers."

    @property
    def has_embedding(self) -> bool:
        """The first stage has it, and the last one if its head is tied to it."""
        return is_first(self.stage) or (is_last(self.stage) and self.head.is_tied)

    @property
    def ends(self) -> tuple[Sequence[str], Sequence[str]]:
        """The submodules before the layers and those behind them."""
        return ("embedding",), ("norm", "head")

    @property
    def optional_prefix(self) -> str:
        """A prefix of the names that a checkpoint may leave out of all of them, as one without an output head does."""
        return ""

    def cut(self, stage: PipelineStage) -> None:
        """Become this stage: what the others have is there no more."""
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
        """All weights are written: make of quantized ones what is multiplied by, one after the other."""
        for projection in self.projections:
            projection.finish_reading(dtype)
        for _, mixture in self.mixtures():
            mixture.finish_reading(dtype)

    def materialize(self, dtype: torch.dtype, device: torch.device) -> None:
        """Give the parameters memory, those that are floats of `dtype`, from now on the model's, and what quantized
        weights are read into; the values are undefined.

        Not by `to_empty`: to ask whether a tensor is a fake one, torch imports sympy for it, 1.7 s of a start.
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
        """What the weights take on a device, at most. On a CPU experts of few bits may have to be made plain."""
        experts = [mixture for _, mixture in self.mixtures()] if device.type == "cpu" else []
        plain = [mixture for mixture in experts if not mixture.stays_quantized(dtype)]
        of_bytes = 2 * dtype.itemsize if plain else 1
        tensors = self.checkpoint_tensors().values()
        made_plain = sum(each.num_made_plain for each in self.projections)
        made_plain += sum(mixture.num_made_plain for mixture in plain)
        return made_plain * dtype.itemsize + sum(_num_bytes(each, dtype, of_bytes) for each in tensors)

    def fit_cpu(self, dtype: torch.dtype) -> None:
        """Give up forms of weights that only a GPU has kernels for; once they are written."""
        for _, mixture in self.mixtures():
            mixture.fit_cpu(dtype)

    @property
    def rows_of_each_kernel(self) -> Sequence[int]:
        """Numbers of rows, besides the usual ones, that launch kernels of their own; in rising order."""
        return sorted({rows for _, mixture in self.mixtures() for rows in mixture.rows_of_each_kernel})

    def build_positions(self, num_positions: int, device: torch.device) -> None:
        """Make the tables of positions below `num_positions`."""
        for module in self.modules():
            if isinstance(module, RotaryEmbedding):
                module.build(num_positions, device)

    @property
    def multiplies_in_registers(self) -> bool:
        """Whether products of few rows are those of kernels/register_product.py, which take little shared memory and
        read scales and rows from the L1 cache again and again. Once the weights are loaded."""
        return any(projection.is_quantized for projection in self.projections)

    @property
    def projections(self) -> Sequence[Projection]:
        """In the order of their computation, but for the head, which may come anywhere."""
        return [module for module in self.modules() if isinstance(module, Projection)]


def _num_bytes(there: Destination, dtype: torch.dtype, of_bytes: int) -> int:
    """of_bytes: what a byte of packed numbers takes."""
    if not isinstance(there, Tensor) or there.dtype in (torch.int32, FP8):
        return there.nbytes
    return there.numel() * (dtype.itemsize if there.is_floating_point() else of_bytes)
