"""Row classes for input rows: PySpark's Row, made and read faster."""

from __future__ import annotations

from operator import itemgetter

from pyspark.sql import Row


def row_type_of(names: list[str]) -> type[Row]:
    """Return a Row class whose rows are made, and read by name, without PySpark's overhead per row.

    A field that shares its name with a method of Row is reached as in PySpark: by ``row["count"]``.
    """
    by_name = {
        name: property(itemgetter(index))
        for index, name in reversed(list(enumerate(names)))
        if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**by_name, "__fields__": names, "__slots__": ()})
