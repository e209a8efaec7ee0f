"""Packs examples into the micro-batches of each optimizer step.

A micro-batch has a fixed number of tokens and holds several sequences, each of which attends only to itself; so little
of a forward pass is padding, and all micro-batches have one shape. An optimizer step is a number of examples, in as
many micro-batches as they need. Its gradient is that of (sum of the trained tokens' losses) / (number of the step's
trained tokens), so it does not depend on the packing.

Everything follows from the seed and the step number: a job can resume at any step with nothing but that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.finetune.dataset import Example

NOT_TRAINED = -1
"""As a target: no loss here."""


class MicroBatch(NamedTuple):
    """token_ids, positions, targets: [T] int64, the same T for the whole job. lengths: [S] int32, of the sequences,
    which are adjacent and start at token 0; the rest is padding (token 0, position 0, not trained).

    positions: start at 0 in each sequence. targets: the next token if it is trained on, else NOT_TRAINED. num_trained:
    number of trained targets, >= 1.
    """

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int64]
    num_trained: int


class OptimizerStep(NamedTuple):
    """epoch: from 0. num_trained: of all micro-batches together; the gradient of the sum of losses is divided by it."""

    epoch: int
    micro_batches: tuple[MicroBatch, ...]
    num_trained: int


class TrainingData:
    """The steps of a job. One thread at a time."""

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch_size: int,
        micro_batch_tokens: int,
        num_epochs: int,
        seed: int,
    ) -> None:
        """batch_size: examples per step; the last step of an epoch may have fewer. No example may be longer than
        micro_batch_tokens."""
        assert examples and batch_size >= 1 and num_epochs >= 1 and seed >= 0
        self._examples = examples
        self._batch_size = batch_size
        self._micro_batch_tokens = micro_batch_tokens
        self._seed = seed
        self._order = (0, training_order(seed, 0, len(examples)))
        self.num_steps_per_epoch = -(-len(examples) // batch_size)
        self.num_steps = num_epochs * self.num_steps_per_epoch

    def step(self, index: int) -> OptimizerStep:
        """index: of the step, from 0, over all epochs."""
        assert 0 <= index < self.num_steps
        epoch, within = divmod(index, self.num_steps_per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, training_order(self._seed, epoch, len(self._examples))
        chosen = self._order[1][within * self._batch_size : (within + 1) * self._batch_size]
        micro_batches = packed([self._examples[at] for at in chosen.tolist()], self._micro_batch_tokens)
        return OptimizerStep(epoch, micro_batches, sum(each.num_trained for each in micro_batches))


def training_order(seed: int, epoch: int, num_examples: int) -> npt.NDArray[np.int64]:
    """[num_examples] indices, each once, shuffled.

    Sorts by keys drawn directly from the bit generator, whose stream numpy guarantees never to change. What `shuffle`
    makes of it may change between versions, and a job resumed then would see some examples twice.
    """
    keys = np.random.PCG64(np.random.SeedSequence((seed, epoch))).random_raw(num_examples)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def packed(examples: Sequence[Example], num_tokens: int) -> tuple[MicroBatch, ...]:
    """Pack each example once into micro-batches of `num_tokens` tokens: first-fit decreasing (Johnson 1973)."""
    bins: list[list[Example]] = []
    room: list[int] = []
    for example in sorted(examples, key=lambda each: -len(each.token_ids)):
        length = len(example.token_ids)
        assert length <= num_tokens
        at = next((at for at, free in enumerate(room) if free >= length), len(room))
        if at == len(room):
            bins.append([])
            room.append(num_tokens)
        bins[at].append(example)
        room[at] -= length
    return tuple(_micro_batch(members, num_tokens) for members in bins)


def _micro_batch(examples: Iterable[Example], num_tokens: int) -> MicroBatch:
    token_ids = np.zeros(num_tokens, np.int64)
    positions = np.zeros(num_tokens, np.int64)
    targets = np.full(num_tokens, NOT_TRAINED, np.int64)
    lengths = []
    start = 0
    for example in examples:
        end = start + len(example.token_ids)
        token_ids[start:end] = example.token_ids
        positions[start:end] = np.arange(end - start)
        targets[start : end - 1] = np.where(example.is_trained[1:], example.token_ids[1:], NOT_TRAINED)
        lengths.append(end - start)
        start = end
    return MicroBatch(
        token_ids, positions, np.asarray(lengths, np.int32), targets, int(np.count_nonzero(targets != NOT_TRAINED))
    )
