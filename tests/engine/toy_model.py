"""A model whose next token is a hash of everything that it reads through the block table, and its oracle.

The scheduler, block manager and engine around it are the real ones. A stale block, a wrong slot, an early free or a
mixed-up row changes what is read, and so gives a wrong token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from service.core.adapter import AdapterLoad
from service.core.block_moves import FinishedTransfer, Transfer
from service.core.embedding import Vector
from service.core.iteration import IterationPlan, IterationResult, ScheduledDecodes
from service.core.layer_groups import TableGroups, one_group
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import PENDING_TOKEN_ID, ScheduledSequence
from service.core.token_logprobs import TokenLogprobs
from service.core.training import Arena, Training, TrainingOutcome, TrainingShare
from tests.engine.late_executor import LateExecutor, LateIteration
from tests.engine.toy_grammar import ToyGrammar
from tests.engine.toy_training import STEP_S, ToyMemory, ToyTraining
from tests.structured.masks import nearest_allowed

Cell = tuple[int, int] | tuple[int, int, object]
"""A slot's content: token id and position; and if an adapter's weights computed it, these."""

WEIGHTS = -3
"""In a slot that holds weights, in place of a token id."""

Window = int | None
"""Tokens that a query sees, its own included; None: all. With a window a cell also holds what its token saw, so that it
depends on all tokens before, as in a model of many layers."""

NUM_BEAM_IDS = 40
"""Beams have few different tokens, so that they meet stop tokens now and then."""


def next_token(cells: list[Cell], seed: int, vocabulary: int) -> int:
    digest = hashlib.sha256(repr((cells, seed)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % vocabulary


def oracle(
    prompt: tuple[int, ...],
    seed: int,
    max_tokens: int,
    stops: frozenset[int],
    vocabulary: int,
    grammar: ToyGrammar | None = None,
    weights: str | None = None,
    window: Window = None,
) -> list[int]:
    """The tokens of a request that is served alone. If its grammar fails, those before the failure."""
    tokens = list(prompt)
    matcher = None if grammar is None else grammar.start()
    while len(tokens) - len(prompt) < max_tokens:
        drawn = next_token(seen(cells_of(tokens, weights, window), window), seed, vocabulary)
        if matcher is not None:
            drawn = matcher.nearest(drawn, vocabulary)
            if not matcher.accept(drawn):
                break
        tokens.append(drawn)
        if drawn in stops or (matcher is not None and matcher.is_finished):
            break
    return tokens[len(prompt) :]


def cells_of(tokens: Sequence[int], weights: object = None, window: Window = None) -> list[Cell]:
    """The slots of a sequence. weights: of its adapter."""
    cells: list[Cell] = []
    for position, token_id in enumerate(tokens):
        before = cells[max(0, position + 1 - window) :] if window is not None else []
        cells.append(cell_of(token_id, position, with_seen(weights, before) if window is not None else weights))
    return cells


def with_seen(weights: object, before: Sequence[Cell | None]) -> object:
    """What a cell holds besides its token, if its query saw the cells `before` it."""
    return weights, hashlib.sha256(repr(before).encode()).hexdigest()[:16]


def seen(cells: Sequence[Cell], window: Window) -> list[Cell]:
    """The cells that the last token's query sees."""
    return list(cells if window is None else cells[-window:])


def cell_of(token_id: int, position: int, weights: object) -> Cell:
    return (token_id, position) if weights is None else (token_id, position, weights)


def logprob_after(cells: list[Cell], token_id: int) -> float:
    """Logprob of a token, computed from what is read before it."""
    return -1e-3 * (1 + next_token([*cells, (token_id, -1)], 0, 1000))


def pooled_cells(cells: list[Cell], num: int) -> Vector:
    """For each of the last `num` tokens, a number that depends on all before it: their sum, exact in fp32."""
    return pooled_views([cells[:end] for end in range(len(cells) - num + 1, len(cells) + 1)])


def pooled_views(views: Sequence[list[Cell]]) -> Vector:
    """views: the cells that each token sees."""
    return np.array([sum(next_token(view, 0, 1000) for view in views), len(views)], np.float32)


def toy_top(cells: list[Cell], count: int) -> tuple[tuple[int, float], ...]:
    """The most probable next tokens and their logprobs, from what is read: distinct ids, descending values."""
    values: dict[int, float] = {}
    attempt = 0
    while len(values) < count:
        chance = next_token(cells, -1 - attempt, NUM_BEAM_IDS * 10**9)
        values.setdefault(chance % NUM_BEAM_IDS, -1e-9 * (1 + chance // NUM_BEAM_IDS))
        attempt += 1
    return tuple(sorted(values.items(), key=lambda pair: -pair[1]))


def beam_oracle(
    prompt: tuple[int, ...], sampling: SamplingParams, weights: str | None = None, window: Window = None
) -> list[list[int]]:
    """The n best beams of a request that is served alone, by definition: whole sequences, sorted in every step."""
    beam = sampling.beam
    assert beam is not None and sampling.num_logprobs is not None
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, sampling.max_tokens + 1):
        grown = []
        for logprob, tokens in beams:
            cells = seen(cells_of([*prompt, *tokens], weights, window), window)
            grown += [(logprob + lp, [*tokens, t]) for t, lp in toy_top(cells, sampling.num_logprobs)]
        grown.sort(key=lambda pair: -pair[0])
        is_over = [length == sampling.max_tokens or tokens[-1] in sampling.stop_token_ids for _, tokens in grown]
        ended = [pair for pair, over in list(zip(grown, is_over, strict=True))[: beam.width] if over]
        finished += [(logprob / length**beam.length_penalty, tokens) for logprob, tokens in ended]
        finished = sorted(finished, key=lambda pair: -pair[0])[: beam.width]
        beams = [pair for pair, over in zip(grown, is_over, strict=True) if not over][: beam.width]
        if not beams or (len(finished) == beam.width and beam.early_stopping is True):
            break
        is_patient = beam.early_stopping == "never" and beam.length_penalty > 0
        hoped_length = sampling.max_tokens if is_patient else length
        if len(finished) == beam.width and beams[0][0] / hoped_length**beam.length_penalty <= finished[-1][0]:
            break
    return [tokens for _, tokens in finished[: sampling.n]]


class ToyExecutor(LateExecutor):
    """Executes plans on a dictionary of slots, in the order that a plan promises.

    digests: adapter id -> digest of its weights. groups: of layers. If only some of several have a window, the tokens
    come from those that see everything; for the others it checks that they hold the same for all that the window shows.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocabulary: int,
        transfer_delay: int = 0,
        window: Window = None,
        groups: TableGroups | None = None,
    ) -> None:
        super().__init__()
        self._groups = groups or one_group(window)
        self._watched_window = window
        self._window = None if self._groups.num_full else window
        self._transfer_delay = transfer_delay
        self._host_slots: dict[int, Cell] = {}
        self._in_flight: list[tuple[int, Transfer]] = []
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocabulary = vocabulary
        self._slots: dict[int, Cell] = {}
        self.tables: dict[int, list[int]] = {}
        self._last_drawn: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self.digests: dict[int, str] = {}
        self._adapter_blocks: dict[int, tuple[int, ...]] = {}  # by slot
        self._adapter_slots: dict[int, int] = {}  # by row
        self.plans: list[IterationPlan] = []
        self._last_decodes: ScheduledDecodes | None = None
        self._trainings: dict[int, ToyTraining] = {}
        self._arenas: dict[int, Arena | None] = {}

    def add_training(self, training: Training) -> int:
        assert isinstance(training, ToyTraining)
        self._trainings[training.training_id], self._arenas[training.training_id] = training, None
        return training.num_arena_bytes

    def remove_training(self, training_id: int) -> None:
        training = self._trainings.pop(training_id, None)
        if training is not None and self._arenas.pop(training_id) is not None:
            training.use_memory(None)

    def training_state(self, training_id: int) -> object:
        return self._trainings[training_id].state()

    def launch(self, plan: IterationPlan) -> LateIteration:
        if plan.computes:
            self._check_version(plan.decodes)
        return super().launch(plan)

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.plans.append(plan)
        for row in plan.released:
            self.tables.pop(row, None)
            self._last_drawn.pop(row, None)
        self._check_transfers(plan)
        self._in_flight += [(len(self.plans) + self._transfer_delay, transfer) for transfer in plan.transfers]
        if self._transfer_delay == 0:
            finished = self._finish_transfers(plan)
        for load in plan.adapter_loads:
            self._load(load)
        for copy in plan.copies:
            self._copy_block(self._slots, copy.source, self._slots, copy.destination)
        if plan.training is not None:
            return IterationResult((), self._finish_transfers(plan), training=self._train(plan.training))
        for item in plan.scheduled:
            self._write(item)
        token_ids = tuple(
            next_token(self._read(item), sample.seed, self._vocabulary)
            for item in plan.scheduled
            for sample in item.samples
        )
        if plan.masks is not None:
            token_ids = tuple(nearest_allowed(token_ids, plan.masks))
        self.note_drawn(plan, token_ids)
        if self._transfer_delay:
            finished = self._finish_transfers(plan)
        drawing = (item for item in plan.scheduled for _ in item.samples)
        logprobs = tuple(self._logprobs(*pair) for pair in zip(drawing, token_ids, strict=True))
        scored = tuple((item.sequence_id, self._score(item)) for item in plan.scheduled if item.targets)
        pooled = tuple((item.sequence_id, self._pool(item)) for item in plan.scheduled if item.num_pooled)
        return IterationResult(token_ids, finished, logprobs if any(logprobs) else (), scored, pooled)

    def note_drawn(self, plan: IterationPlan, token_ids: Sequence[int]) -> None:
        drawing = [item.row for item in plan.scheduled for _ in item.samples]
        self._last_drawn.update(zip(drawing, token_ids, strict=True))

    def _train(self, share: TrainingShare) -> TrainingOutcome:
        training_id, arena = share.training_id, share.arena
        training = self._trainings.get(training_id)
        if training is None:
            return TrainingOutcome(training_id, 0, 0.0, 0)
        if arena != self._arenas[training_id]:
            self._arenas[training_id] = arena
            places = [] if arena is None else self._slots_of(tuple(arena.block_ids))
            training.use_memory(ToyMemory(self._slots, places) if places else None)
        done = training.advance(share.num_layer_steps)
        news = training.take_news()
        return TrainingOutcome(training_id, done, STEP_S * done, training.layer_steps_left, news, training.is_over)

    def _check_version(self, decodes: ScheduledDecodes) -> None:
        """An executor that continues from the last plan of this version must arrive at what this plan says."""
        assert decodes.num_tokens == decodes.num_new_tokens.sum()
        before, self._last_decodes = self._last_decodes, decodes
        if before is None or before.version != decodes.version:
            return
        for column in ("sequence_ids", "rows", "seeds"):
            assert (getattr(before, column) == getattr(decodes, column)).all()
        assert (before.num_computed_tokens + before.num_new_tokens == decodes.num_computed_tokens).all()

    def _check_transfers(self, plan: IterationPlan) -> None:
        """Blocks being moved are not written before they have arrived, nor read at their destination
        (core/iteration.py)."""
        moving = [transfer for _, transfer in self._in_flight]
        for transfer in plan.transfers:
            for other in moving:
                both_leave = transfer.to_host and other.to_host
                assert both_leave or set(transfer.device_blocks).isdisjoint(other.device_blocks), (
                    "what moves is written"
                )
                assert set(transfer.host_blocks).isdisjoint(other.host_blocks), "what moves is not moved again"
            moving.append(transfer)
        on_the_way = {block_id for transfer in moving for block_id in transfer.device_blocks}
        arriving = {block_id for transfer in moving if not transfer.to_host for block_id in transfer.device_blocks}
        assert on_the_way.isdisjoint(copy.destination for copy in plan.copies)
        assert arriving.isdisjoint(copy.source for copy in plan.copies)
        tables = self.tables.copy()
        for item in plan.scheduled:
            if item.block_ids:  # none in a draft, nor where nothing has changed
                tables[item.row] = [*tables.get(item.row, [])[: item.table_start], *item.block_ids]
            table = tables[item.row]
            end = item.num_computed_tokens + len(item.token_ids)
            size, num_full = self._groups.size, self._groups.num_full
            written = table[item.num_computed_tokens // self._block_size * size : -(-end // self._block_size) * size]
            assert on_the_way.isdisjoint(written), "what moves is not written"
            first = max(0, item.num_computed_tokens + 1 - (self._watched_window or end)) // self._block_size
            read = [b for i, b in enumerate(table) if i % size < num_full or i // size >= first]
            assert arriving.isdisjoint(read), "what has not arrived is not read"

    def block(self, block_id: int) -> list[Cell | None]:
        """The content of its slots."""
        first = block_id * self._block_size
        return [self._slots.get(slot) for slot in range(first, first + self._block_size)]

    def _logprobs(self, item: ScheduledSequence, token_id: int) -> TokenLogprobs | None:
        if item.sampling.num_logprobs is None:
            return None
        cells = self._read(item)
        if item.sampling.beam is not None:
            return TokenLogprobs(0.0, toy_top(cells, item.sampling.num_logprobs))
        return TokenLogprobs(logprob_after(cells, token_id), ())

    def _pool(self, item: ScheduledSequence) -> Vector:
        """Pool the last scheduled tokens."""
        end = item.num_computed_tokens + len(item.token_ids)
        return pooled_views([self._read(item, each) for each in range(end - item.num_pooled + 1, end + 1)])

    def _score(self, item: ScheduledSequence) -> tuple[TokenLogprobs, ...]:
        """Score the tokens that the scheduled ones predict."""
        targets = enumerate(item.targets, item.num_computed_tokens + 1)
        return tuple(TokenLogprobs(logprob_after(self._read(item, end), target), ()) for end, target in targets)

    def _finish_transfers(self, plan: IterationPlan) -> tuple[FinishedTransfer, ...]:
        """Copies happen as late as allowed, so that a block that is reused too early is caught."""
        if plan.awaits_transfer and self._in_flight:
            self._in_flight = [(len(self.plans), transfer) for _, transfer in self._in_flight]
        due = [transfer for when, transfer in self._in_flight if when <= len(self.plans)]
        self._in_flight = [(when, transfer) for when, transfer in self._in_flight if when > len(self.plans)]
        for transfer in due:
            for device_block, host_block in zip(transfer.device_blocks, transfer.host_blocks, strict=True):
                if transfer.to_host:
                    self._copy_block(self._slots, device_block, self._host_slots, host_block)
                else:
                    self._copy_block(self._host_slots, host_block, self._slots, device_block)
        return tuple(FinishedTransfer(t.transfer_id, 0.001 * len(t.device_blocks)) for t in due)

    def _copy_block(self, sources: dict[int, Cell], source: int, destinations: dict[int, Cell], target: int) -> None:
        for offset in range(self._block_size):
            cell = sources.get(source * self._block_size + offset)
            if cell is not None:
                destinations[target * self._block_size + offset] = cell
            else:
                destinations.pop(target * self._block_size + offset, None)

    def _write(self, item: ScheduledSequence) -> None:
        if item.table_start == 0 and item.block_ids:
            self._owners[item.row] = item.sequence_id
            self._adapter_slots[item.row] = item.adapter_slot
        assert self._owners[item.row] == item.sequence_id, "a row is one sequence's"
        table = self.tables.setdefault(item.row, [])
        assert item.table_start <= len(table), "a table grows without gaps"
        table[item.table_start :] = item.block_ids if item.block_ids else table[item.table_start :]
        assert all(0 <= block_id < self._num_blocks for block_id in table)
        *known, last = item.token_ids
        last = self._last_drawn[item.row] if last == PENDING_TOKEN_ID else last
        weights = self._weights(self._adapter_slots[item.row])
        for position, token_id in enumerate([*known, last], item.num_computed_tokens):
            held = weights
            if self._window is not None:
                before = range(self._first_seen(position + 1), position)
                held = with_seen(weights, [self._slots.get(self._slot(table, place)) for place in before])
            for group in range(self._groups.size):
                self._slots[self._slot(table, position, group)] = cell_of(token_id, position, held)
            self._watch(table, position + 1)

    def _load(self, load: AdapterLoad) -> None:
        """Fill the adapter's blocks with its weights."""
        self._adapter_blocks[load.slot] = load.block_ids
        digest = self.digests[load.adapter_id]
        for place, slot in enumerate(self._slots_of(load.block_ids)):
            self._slots[slot] = (WEIGHTS, place, digest)

    def _weights(self, adapter_slot: int) -> object:
        """What a step with this slot computes with: the digest, if everything read is the weights as loaded; else
        something that is no digest."""
        if not adapter_slot:
            return None
        read = [self._slots.get(slot) for slot in self._slots_of(self._adapter_blocks.get(adapter_slot, ()))]
        digest = read[0][2] if read and read[0] is not None and len(read[0]) == 3 else "nothing"
        is_whole = read == [(WEIGHTS, place, digest) for place in range(len(read))]
        return digest if is_whole else tuple(read)

    def _slots_of(self, block_ids: tuple[int, ...]) -> list[int]:
        size = self._block_size
        return [slot for block_id in block_ids for slot in range(block_id * size, (block_id + 1) * size)]

    def _read(self, item: ScheduledSequence, end: int | None = None) -> list[Cell]:
        """The cells that the token before position `end` sees; None: the last token."""
        table = self.tables[item.row]
        end = item.num_computed_tokens + len(item.token_ids) if end is None else end
        self._watch(table, end)
        return [self._slots[self._slot(table, position)] for position in range(self._first_seen(end), end)]

    def _watch(self, table: list[int], end: int) -> None:
        """Check that all groups hold what the window shows the token before `end`."""
        for group in range(1, self._groups.size):
            is_full = group < self._groups.num_full
            for position in range(0 if is_full else max(0, end - (self._watched_window or end)), end):
                first, other = (self._slots.get(self._slot(table, position, each)) for each in (0, group))
                assert other == first, "each group of layers holds what its layers see"

    def _first_seen(self, end: int) -> int:
        """The first position that the token before `end` sees."""
        return 0 if self._window is None else max(0, end - self._window)

    def _slot(self, table: list[int], position: int, group: int = 0) -> int:
        entry = position // self._block_size * self._groups.size + group
        return table[entry] * self._block_size + position % self._block_size
