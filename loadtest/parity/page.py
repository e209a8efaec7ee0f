"""The result of a comparison as a Markdown page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.parity.comparison import Comparison, Difference, Searches

_MOST_DIFFERENCES = 20
_TEXT_BEFORE = 60


@dataclass(frozen=True, slots=True)
class Findings:
    """comparisons: how we were asked -> our answers against transformers' to each prompt alone. num_own_equal,
    num_theirs_equal: answers that are the same alone and in one batch. most_by_rounding: in nats, see Rounding."""

    model: str
    machine: str
    num_tokens: int
    comparisons: Mapping[str, Comparison]
    num_own_equal: int
    num_theirs_equal: int
    num_prompts: int
    most_by_rounding: float
    searches: Searches

    @property
    def all_explained(self) -> bool:
        """Whether rounding explains every difference: of greedy tokens, of their logprobs, and of the best beams."""
        are_beams_as_good = all(ahead <= self.most_by_rounding for ahead in self.searches.ahead.values())
        return are_beams_as_good and all(found.is_explained for found in self.comparisons.values())


def page(findings: Findings, prompt_of: Callable[[Difference], str], text_of: Callable[[int], str]) -> str:
    """prompt_of: the text before a difference. text_of: a token's text."""
    lines = [
        f"# {findings.model}: Headrace beside transformers",
        "",
        f"{findings.machine}. {findings.num_prompts} prompts, {findings.num_tokens} greedy tokens each.",
        "",
        "| Headrace's answers | equal to `generate` | near-ties among the others | largest logprob error | mean |",
        "|---|---|---|---|---|",
    ]
    for name, found in findings.comparisons.items():
        lines.append(
            f"| {name} | {found.num_equal} of {found.num_answers} | {found.num_near_ties} of {len(found.differences)} "
            f"| {found.logprob_error:.2g} | {found.mean_error:.2g} |"
        )
    lines += [
        "",
        f"The same alone and in one batch: {findings.num_own_equal} of {findings.num_prompts} of Headrace's answers, "
        f"{findings.num_theirs_equal} of transformers'.",
    ]
    lines += _searched(findings.searches)
    lines += [
        "",
        "A near-tie: by transformers' own logprobs the two tokens are no farther apart than twice the largest logprob "
        f"error of the other prompts (counted as {findings.most_by_rounding:g} nats at most). Rounding may decide "
        "there. It also depends on the number of rows in a batch.",
    ]
    if not all(found.is_rounding for found in findings.comparisons.values()):
        lines += ["", f"**Logprobs are off by more than {findings.most_by_rounding:g} nats: that is not rounding.**"]
    for name, found in findings.comparisons.items():
        lines += _differences(name, found.differences, prompt_of, text_of)
    return "\n".join(lines) + "\n"


def _searched(searches: Searches) -> list[str]:
    if not searches.equal:
        return []
    num_equal, num = sum(same == searches.width for same in searches.equal), len(searches.equal)
    lines = ["", f"Beam searches of width {searches.width} with all beams equal: {num_equal} of {num}.", ""]
    for number, ahead in searches.ahead.items():
        likelier = f"{abs(ahead):.2g} nats {'less' if ahead > 0 else 'more'}" if ahead else "as"
        lines.append(
            f"- Prompt {number}: {searches.equal[number]} of {searches.width} beams are equal. Headrace's best one is "
            f"{likelier} likely, by transformers' logprobs of all its tokens."
        )
    return lines


def _differences(
    name: str,
    differences: Sequence[Difference],
    prompt_of: Callable[[Difference], str],
    text_of: Callable[[int], str],
) -> list[str]:
    if not differences:
        return []
    lines = ["", f"## First differences, {name}", ""]
    lines += [
        "| prompt | token | after the text | Headrace | transformers | nats apart | |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in differences[:_MOST_DIFFERENCES]:
        behind = _code(prompt_of(each)[-_TEXT_BEFORE:])
        verdict = "near-tie" if each.is_near_tie else "**not a near-tie**"
        ours, theirs = _code(text_of(each.ours)), _code(text_of(each.theirs))
        lines.append(f"| {each.prompt} | {each.place} | {behind} | {ours} | {theirs} | {each.gap:.2g} | {verdict} |")
    if len(differences) > _MOST_DIFFERENCES:
        lines.append(f"\nand {len(differences) - _MOST_DIFFERENCES} more.")
    return lines


def _code(text: str) -> str:
    """As code in a table's cell."""
    plain = text.replace("\n", "⏎").replace("|", "¦").replace("`", "'")
    return f"`{plain}`" if plain else ""
