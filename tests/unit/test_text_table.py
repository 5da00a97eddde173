"""Tables in plain text."""

from __future__ import annotations

from pyspark_ckpt.text_table import text_pairs, text_table


def test_columns_are_aligned_and_long_cells_continue_below() -> None:
    rows = [("a", "one two three four", "x"), ("long name", "", "y z")]
    assert text_table(("k", "text", "end"), rows, cell_width=9).splitlines() == [
        "k          text     end",
        "-----------------------",
        "a          one two  x",
        "           three",
        "           four",
        "long name           y z",
    ]


def test_a_word_longer_than_a_cell_is_broken_but_not_lost() -> None:
    lines = text_table(("k",), [("abcdefgh",), ("two\nlines",)], cell_width=3).splitlines()
    assert lines == ["k", "---", "abc", "def", "gh", "two", "lin", "es"]


def test_without_rows_there_is_the_header() -> None:
    assert text_table(("a", "bc"), [], cell_width=9) == "a  bc\n-----"


def test_marks_of_the_library_that_prints_are_text_like_any_other() -> None:
    assert text_table(("[b]k",), [("[red]x[/red]",)]).splitlines()[::2] == ["[b]k", "[red]x[/red]"]


def test_a_cell_is_as_wide_as_its_text() -> None:
    assert text_table(("k",), [("x " * 500,)]).splitlines()[2] == ("x " * 500).rstrip()


def test_pairs_are_aligned() -> None:
    assert text_pairs({"path": "/a b", "n": 7}) == "path  /a b\nn     7"
    assert text_pairs({}) == ""


def test_what_is_no_line_break_here_breaks_no_line() -> None:
    """A stored name may have it."""
    name = "x\u2028operator good\x85y\x1cz"
    assert text_table(["name"], [[name]]).splitlines()[-1] == "x?operator good?y?z"
    assert text_pairs({"name": name}) == "name  x?operator good?y?z"
