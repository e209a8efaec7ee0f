"""Speculative decoding: an iteration computes a sequence's last token followed by drafts. Drafts count as far as they
equal what the sequence draws (Leviathan et al., 2023, with a draft of probability one).

Every token is drawn as without drafts, from the same logits with the same seed and position; a draft is right if it
equals that token. So outputs are the same with and without speculation, greedy or not. A draft costs its row of the
batch, and the host must know how many were right before it can decide the next iteration. So drafts are computed only
where that pays: judged by how many of the sequence's recent drafts were right, and by the predicted iteration time with
and without drafts. Drafts that are not computed are still compared with the actual tokens, so that a sequence which
begins to copy is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.ngram_drafts import Drafter, NgramDrafts

MOST_RUNNING = 32
"""With more running requests in a lane there are no drafts, and none are looked up: the device is busy without them."""

LEAST_GAIN = 0.05
"""Least predicted gain in tokens per second; a smaller one may be a prediction error."""

FIRST_RIGHT = 0.0
"""Right drafts expected of a new sequence. With 0, its drafts are only compared at first, and computed after some were
right. Copying text then loses its first few tokens, and other text pays nothing: with 0.5 it had 2 vain steps in 64,
with 1.0 it had 4 or 5, and lost by them (loadtest/log/cpu.md)."""

LEARN = 1 / 4
"""Weight of each new outcome in the moving average of right drafts."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """num_drafts: drafts per sequence and iteration. most_rows: the most decodes and drafts together in an iteration.
    drafter: creates a Drafter for a sequence."""

    num_drafts: int
    most_rows: int
    drafter: Callable[[], Drafter] = NgramDrafts


@dataclass(slots=True)
class _Track:
    """What is known of one sequence. expected: moving average of right drafts. start, guess: the latest guess, which
    begins at position `start`; empty once it was compared."""

    drafter: Drafter
    expected: float = FIRST_RIGHT
    start: int = 0
    guess: tuple[int, ...] = ()

    def compare(self, token_ids: list[int], num_known: int) -> None:
        """Compare the guess with the actual tokens, if enough of them are known."""
        came = token_ids[self.start : min(num_known, self.start + len(self.guess))]
        num_right = num_equal(self.guess, came)
        if self.guess and (num_right < len(came) or num_right == len(self.guess)):
            self.expected += (num_right - self.expected) * LEARN
            self.guess = ()


@dataclass(frozen=True, slots=True)
class _Wish:
    """The drafts that a group could compute. num_read: tokens that each of them attends to."""

    group: SequenceGroup
    track: _Track
    drafts: tuple[int, ...]
    num_read: int

    @property
    def gain(self) -> float:
        return min(self.track.expected, len(self.drafts))


class DraftChoice:
    """Chooses the groups that draft in the next iteration. Engine thread only."""

    def __init__(self, speculation: Speculation, ledger: RecoveryLedger) -> None:
        self._speculation = speculation
        self._ledger = ledger
        self._tracks: dict[int, _Track] = {}
        self._chosen: dict[int, tuple[int, ...]] = {}

    def must_wait(self, batch: DecodeBatch, running: list[SequenceGroup], *, is_launched: bool) -> bool:
        """Choose among a lane's running groups; chosen ones leave its decode batch. is_launched: an iteration of the
        lane is in flight, so the last ids are unknown. Then none is chosen, and True means: wait for those ids, since
        some group would probably draft."""
        self._chosen = {}
        if len(running) > MOST_RUNNING:
            self._tracks.clear()
            return False
        batch.write_tokens()
        decoding = [group for group in running if group in batch or _decodes(group)]
        chosen = self._worth_it(self._wishes(decoding, is_launched=is_launched), decoding)
        if is_launched:
            return bool(chosen)
        for wish in chosen:
            sequence = wish.group.live[0]
            wish.track.start, wish.track.guess = len(sequence.token_ids), wish.drafts
            self._chosen[sequence.sequence_id] = wish.drafts
        batch.part_with([wish.group for wish in chosen])
        return False

    def of(self, sequence: Sequence) -> tuple[int, ...]:
        """The drafts that were chosen for the sequence."""
        return self._chosen.get(sequence.sequence_id, ())

    def forget(self, group: SequenceGroup) -> None:
        """The group has ended."""
        self._tracks.pop(group.sequences[0].sequence_id, None)

    def _wishes(self, decoding: list[SequenceGroup], *, is_launched: bool) -> list[_Wish]:
        """All groups that may draft and have drafts. If the last id is unknown, the first guessed id stands for it."""
        wishes = []
        for group in decoding:
            sequence = group.live[0]
            num_known = sequence.num_known_tokens
            room = sequence.max_num_tokens - 1 - num_known
            if not group.request.may_draft or room <= is_launched or num_known == sequence.num_prompt_tokens:
                continue
            track = self._tracks.get(sequence.sequence_id)
            if track is None:
                track = self._tracks[sequence.sequence_id] = _Track(self._speculation.drafter())
            track.compare(sequence.token_ids, num_known)
            num = min(room, self._speculation.num_drafts + is_launched)
            drafts = track.drafter.draft(sequence, num_known, num)
            if not track.guess:
                track.start, track.guess = num_known, drafts
            if len(drafts) > is_launched:
                wishes.append(_Wish(group, track, drafts[is_launched:], num_known))
        return wishes

    def _worth_it(self, wishes: list[_Wish], decoding: list[SequenceGroup]) -> list[_Wish]:
        """The wishes with which more tokens per second are predicted than without any."""
        num = len(decoding)
        room = self._speculation.most_rows - sum(len(group.live) for group in decoding)
        wishes = list(self._that_fit(sorted(wishes, key=lambda wish: -wish.gain), room))
        if not wishes:
            return []
        num_read = sum(group.live[0].num_known_tokens for group in decoding)
        num_drafts = sum(len(wish.drafts) for wish in wishes)
        plain_s = self._ledger.decodes_s(num, num_read)
        with_all_s = self._ledger.decodes_s(
            num + num_drafts, num_read + sum(w.num_read * len(w.drafts) for w in wishes)
        )
        if plain_s is None or with_all_s is None:  # nothing was measured yet
            plain_s = with_all_s = 1.0
        draft_s = max(0.0, with_all_s - plain_s) / num_drafts
        wishes = [wish for wish in wishes if wish.gain * plain_s > num * draft_s * len(wish.drafts)]
        drafts_s = draft_s * sum(len(wish.drafts) for wish in wishes) + self._ledger.draft_wait_s
        gain = sum(wish.gain for wish in wishes)
        return wishes if (num + gain) * plain_s > (1 + LEAST_GAIN) * num * (plain_s + drafts_s) else []

    @staticmethod
    def _that_fit(wishes: Iterable[_Wish], room: int) -> Iterable[_Wish]:
        for wish in wishes:
            if room <= 0:
                return
            yield replace(wish, drafts=wish.drafts[:room])
            room -= len(wish.drafts)


def _decodes(group: SequenceGroup) -> bool:
    return any(sequence.num_tokens_to_compute == 1 for sequence in group.computing)


def num_equal(guessed: Iterable[int], came: Iterable[int]) -> int:
    """How many of the first ids are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(guessed, came, strict=False)))
