"""What a comparison found, as a page of Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.parity.comparison import Comparison, Difference

_MOST_DIFFERENCES = 20
_TEXT_BEFORE = 60


@dataclass(frozen=True, slots=True)
class Findings:
    """comparisons: ours with transformers' answers to each prompt alone, by what ours were. own: of so many answers how
    many are the same alone and in one batch, ours and theirs. beams: of the searches, those whose beams are all the
    same."""

    model: str
    machine: str
    num_tokens: int
    comparisons: Mapping[str, Comparison]
    num_own_equal: int
    num_theirs_equal: int
    num_prompts: int
    num_searches: int
    num_searches_equal: int
    beam_width: int

    @property
    def all_explained(self) -> bool:
        """Whether every difference of greedy tokens is a near-tie."""
        return all(len(found.differences) == found.num_near_ties for found in self.comparisons.values())


def page(findings: Findings, prompt_of: Callable[[Difference], str], text_of: Callable[[int], str]) -> str:
    """prompt_of: the text before a difference. text_of: of a token."""
    lines = [
        f"# {findings.model}: Headrace beside transformers",
        "",
        f"{findings.machine}. {findings.num_prompts} prompts, {findings.num_tokens} greedy tokens each.",
        "",
        "| Headrace's answers | equal to `generate` | of the others, near-ties | logprobs off by at most | mean |",
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
    if findings.num_searches:
        lines += [
            "",
            f"Beam searches of width {findings.beam_width} with all beams equal: {findings.num_searches_equal} of "
            f"{findings.num_searches}.",
        ]
    lines += [
        "",
        "A near-tie: by transformers' own logprobs the two tokens are no farther apart than twice what any logprob is "
        "off by between the two. Rounding may decide there, and it does so by the number of rows in a batch too.",
    ]
    for name, found in findings.comparisons.items():
        lines += _differences(name, found.differences, prompt_of, text_of)
    return "\n".join(lines) + "\n"


def _differences(
    name: str,
    differences: Sequence[Difference],
    prompt_of: Callable[[Difference], str],
    text_of: Callable[[int], str],
) -> list[str]:
    if not differences:
        return []
    lines = ["", f"## First differences, {name}", ""]
    lines += ["| prompt | token | behind | Headrace | transformers | nats apart | |", "|---|---|---|---|---|---|---|"]
    for each in differences[:_MOST_DIFFERENCES]:
        behind = _code(prompt_of(each)[-_TEXT_BEFORE:])
        verdict = "near-tie" if each.is_near_tie else "**not a near-tie**"
        ours, theirs = _code(text_of(each.ours)), _code(text_of(each.theirs))
        lines.append(f"| {each.prompt} | {each.place} | {behind} | {ours} | {theirs} | {each.gap:.2g} | {verdict} |")
    if len(differences) > _MOST_DIFFERENCES:
        lines.append(f"\nand {len(differences) - _MOST_DIFFERENCES} more.")
    return lines


def _code(text: str) -> str:
    """In one cell of a table."""
    plain = text.replace("\n", "⏎").replace("|", "¦").replace("`", "'")
    return f"`{plain}`" if plain else ""
