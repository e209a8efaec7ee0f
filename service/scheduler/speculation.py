"""Speculation: drafts are computed behind a sequence's last token, all in one iteration, and count as far as they are
what the sequence draws (Leviathan et al., 2023, with a draft of probability one).

Every token is drawn as without drafts, from the same logits, by the same seed and position: a draft is right if it is
equal. So the tokens are the same with speculation and without, greedy or not. What a draft costs is its row of the
batch, and that the host must learn how many were right before it can decide the next iteration. So drafts are computed
only where that pays: by how many of a sequence's last drafts would have been right, and by the predicted time of the
iteration with them and without. Drafts that are not computed are compared with what came, so a sequence that begins to
copy is noticed.
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
"""With more requests than that nobody drafts, and nobody is looked at: the device is busy without drafts."""

LEAST_GAIN = 0.05
"""Tokens a second that drafts must be predicted to give more; less is not worth a prediction's error."""

FIRST_RIGHT = 0.0
"""Drafts expected to be right at once, of a sequence that nothing is known of: none are computed before some that were
only compared have been right. A text that copies waits for its first few tokens, and free text pays for nothing: with
0.5 it had 2 such steps in 64, with 1.0 it had 4 or 5, and lost by them (loadtest/log/cpu.md)."""

LEARN = 1 / 4
"""How far that moves towards each draft's outcome."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """num_drafts: tokens guessed at once. most_rows: tokens that an iteration's decodes and drafts may be together.
    drafter: makes one for each sequence."""

    num_drafts: int
    most_rows: int
    drafter: Callable[[], Drafter] = NgramDrafts


@dataclass(slots=True)
class _Track:
    """A sequence. expected: drafts that will be right. start, guess: the tokens guessed last, from that position on; as
    long as it is not known how many of them are right."""

    drafter: Drafter
    expected: float = FIRST_RIGHT
    start: int = 0
    guess: tuple[int, ...] = ()

    def compare(self, token_ids: list[int], num_known: int) -> None:
        """The guess with what came."""
        came = token_ids[self.start : min(num_known, self.start + len(self.guess))]
        num_right = num_equal(self.guess, came)
        if self.guess and (num_right < len(came) or num_right == len(self.guess)):
            self.expected += (num_right - self.expected) * LEARN
            self.guess = ()


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a group could compute. num_read: tokens that each draft attends to."""

    group: SequenceGroup
    track: _Track
    drafts: tuple[int, ...]
    num_read: int

    @property
    def gain(self) -> float:
        return min(self.track.expected, len(self.drafts))


class DraftChoice:
    """Who drafts in the next iteration. Engine thread only."""

    def __init__(self, speculation: Speculation, ledger: RecoveryLedger) -> None:
        self._speculation = speculation
        self._ledger = ledger
        self._tracks: dict[int, _Track] = {}
        self._chosen: dict[int, tuple[int, ...]] = {}

    def must_wait(self, batch: DecodeBatch, running: list[SequenceGroup], *, is_launched: bool) -> bool:
        """Choose among the running groups of a lane, whose batch this is; who is chosen leaves it. is_launched: an
        iteration of theirs runs, so that the last ids are not known. Then nobody is chosen, and True says that somebody
        would draft if they were."""
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
        """The drafts that were chosen for it."""
        return self._chosen.get(sequence.sequence_id, ())

    def forget(self, group: SequenceGroup) -> None:
        """It has ended."""
        self._tracks.pop(group.sequences[0].sequence_id, None)

    def _wishes(self, decoding: list[SequenceGroup], *, is_launched: bool) -> list[_Wish]:
        """Those of all that may draft, and have one. Where the last id is not known it is the first that is guessed."""
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
        """Those with which more tokens a second are predicted than without."""
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
        if plain_s is None or with_all_s is None:  # nothing was seen yet
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
