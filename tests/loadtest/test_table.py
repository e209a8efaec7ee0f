import pytest

from loadtest.table import aligned, format_figure, text_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1234567, "1,234,567"),
        (1234.5, "1,234"),
        (0.0, "0"),
        (0.012345, "0.01235"),
        ("inf", "inf"),
    ],
)
def test_format(value: object, text: str) -> None:
    assert format_figure(value) == text


def test_columns_of_words_stand_left_those_of_figures_right_and_no_line_ends_in_blanks() -> None:
    assert aligned([["a", "1", "met"], ["bcd", "23", ""]], left=(0, 2)).splitlines() == ["a     1  met", "bcd  23"]
    assert aligned([["a", "1"], ["bcd", "23"]], left=()).splitlines() == ["  a   1", "bcd  23"]


def test_rows_without_any_value_are_left_out_and_columns_align() -> None:
    table = text_table([{"completed": 5}, {"completed": 6, "failed": 1}], ["a", "b"])
    lines = table.splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split()[-2:] == ["-", "1"]
