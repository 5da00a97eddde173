"""Row classes for input rows: PySpark's Row, made and read faster."""

from __future__ import annotations

from collections import namedtuple

from pyspark.sql import Row


def row_type_of(names: list[str]) -> type[Row]:
    """Return a Row class whose rows are made, and read by name, without PySpark's overhead per row.

    A field that shares its name with a method of Row is reached as in PySpark: by ``row["count"]``.
    """
    # A namedtuple's fields are read in C; itemgetter would go through Row's own __getitem__.
    places = [f"f{index}" for index in range(len(names))]
    readers = namedtuple("readers", places)  # type: ignore[misc]  # mypy wants a literal
    by_name = {
        name: getattr(readers, place)
        for name, place in reversed(list(zip(names, places, strict=True)))
        if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**by_name, "__fields__": names, "__slots__": ()})
