"""Tables in plain text."""

from __future__ import annotations

from pyspark_ckpt.operator.schema.report import text_table


def test_columns_are_aligned_and_long_cells_go_on_below() -> None:
    rows = [("a", "one two three four", "x"), ("long name", "", "y z")]
    assert text_table(("k", "text", "end"), rows, width=9).splitlines() == [
        "k          text     end",
        "---------  -------  ---",
        "a          one two  x",
        "           three",
        "           four",
        "long name           y z",
    ]


def test_a_word_longer_than_a_cell_is_broken_but_not_lost() -> None:
    lines = text_table(("k",), [("abcdefgh",), ("two\nlines",)], width=3).splitlines()
    assert lines == ["k", "---", "abc", "def", "gh", "two", "lin", "es"]


def test_without_rows_there_is_the_header() -> None:
    assert text_table(("a", "bc"), [], width=9) == "a  bc\n-  --"
