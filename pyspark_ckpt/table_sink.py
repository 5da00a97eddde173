"""The table that a query's file sink writes to, found or made before the query starts.

Spark makes the table of ``toTable`` when the query starts, in an empty directory only. A restored
query needs entries in the sink's log by then, so the table is made here, in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_SESSION_CATALOG = "spark_catalog"
_DETAILS = "# Detailed Table Information"


class TableSink:
    """A table that a query is to write to.

    Parameters
    ----------
    df
        The query.
    name
        The table's, as ``toTable`` takes it.
    provider
        The format of a new table.
    partition_by
        The columns that a new table is partitioned by.
    path
        Where the files of a new table go, by default into the warehouse.
    """

    def __init__(
        self,
        df: DataFrame,
        name: str,
        provider: str,
        partition_by: Sequence[str] = (),
        path: str | None = None,
    ) -> None:
        self._df = df
        self._spark: SparkSession = df.sparkSession
        self._parts = self._parsed(name)
        self._new_provider = provider
        self._partition_by = partition_by
        self._new_path = path

    @property
    def format(self) -> str | None:
        """The table's format, ``None`` if another catalog than Spark's own makes it."""
        if not self._is_of_session:
            return None
        return self._details().get("Provider") if self._exists else self._new_provider

    @property
    def location(self) -> str | None:
        """The directory of the table's files, ``None`` if it has none that is known."""
        if not self._is_of_session:
            return None
        if self._exists:
            return self._details().get("Location")
        return self._new_path or self._default_location()

    def make(self) -> None:
        """Make the table if it is not there and Spark's own catalog has it."""
        if not self._is_of_session or self._exists:
            return
        columns = self._df._jdf.schema().asNullable().toDDL()
        statement = f"CREATE TABLE {self._name} ({columns}) USING {_quoted([self._new_provider])}"
        if self._partition_by:
            partitions = ", ".join(_quoted([column]) for column in self._partition_by)
            statement += f" PARTITIONED BY ({partitions})"
        if self._new_path is not None:
            text = self._new_path.replace("\\", "\\\\").replace("'", "\\'")
            statement += f" LOCATION '{text}'"
        self._spark.sql(statement)

    @property
    def _is_of_session(self) -> bool:
        if len(self._parts) > 2:
            return self._parts[0].lower() == _SESSION_CATALOG
        return self._spark.catalog.currentCatalog() == _SESSION_CATALOG

    @property
    def _exists(self) -> bool:
        return self._spark.catalog.tableExists(self._name)

    @property
    def _name(self) -> str:
        return _quoted(self._parts)

    def _details(self) -> dict[str, str]:
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._name}").collect()
        names = [row.col_name for row in rows]
        first = names.index(_DETAILS) if _DETAILS in names else len(names)
        return {row.col_name: row.data_type for row in rows[first:]}

    def _default_location(self) -> str:
        java: Any = self._spark._jvm
        *database, table = self._parts[-2:]
        of_database = database[0] if database else self._spark.catalog.currentDatabase()
        identifier = java.org.apache.spark.sql.catalyst.TableIdentifier(
            table, java.scala.Option.apply(of_database)
        )
        session: Any = self._spark._jsparkSession
        return str(session.sessionState().catalog().defaultTablePath(identifier).toString())

    def _parsed(self, name: str) -> list[str]:
        session: Any = self._spark._jsparkSession
        parts = session.sessionState().sqlParser().parseMultipartIdentifier(name)
        return [str(parts.apply(place)) for place in range(parts.size())]


def _quoted(parts: Sequence[str]) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
