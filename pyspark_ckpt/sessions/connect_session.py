"""A session of Spark Connect: this process is a client, and the server has the application."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.sessions import connect

_PART = re.compile(r"`((?:[^`]|``)+)`|([A-Za-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class ConnectSession:
    """A session of a Spark Connect server; as ``Session``."""

    spark: SparkSession
    has_jvm = False

    @property
    def id(self) -> str:
        return connect.id_of(self.spark)

    @property
    def outlives_client(self) -> bool:
        return not connect.server_ends_with_process(self.spark)

    def why_ended(self) -> str | None:
        return connect.why_ended(self.spark)

    def keep_in_use(self) -> None:
        connect.keep_in_use(self.spark)

    def release_ended(self) -> None:
        connect.release_ended(self.spark)

    def can_answer_for(self, other: SparkSession) -> bool:
        # Another server may have ended, and would be asked for minutes.
        return connect.can_answer_for(self.spark, other)

    def is_active(self, query_id: str) -> bool:
        return connect.is_active(self.spark, query_id)

    def runs_on_server(self, query_id: str) -> bool:
        return connect.runs_on_server(self.spark, query_id)

    def settings(self) -> dict[str, str]:
        return self.spark.conf.getAll

    def setting_of_application(self, key: str) -> str | None:
        return self.spark.conf.get(key, None)

    def local_cores(self) -> int | None:
        return connect.configured_cores(self.spark)

    def tasks_at_once(self) -> int:
        return connect.tasks_at_once(self.spark)

    def copy(self, conf: Mapping[str, str]) -> SparkSession:
        return connect.new_session(self.spark, conf)

    def session_for_query(self) -> SparkSession | None:
        # A query copies the conf of the session that it starts in, and a client reaches no other
        # session of it.
        return connect.new_session(self.spark)

    def new_session(self, takes: Callable[[str], bool]) -> SparkSession:
        del takes  # a new session has the conf of the one that it is made of
        return connect.new_session(self.spark)

    def stream_writer(self, df: DataFrame) -> Any:
        return connect.stream_writer(df)

    @contextmanager
    def tagged(self, tag: str, what: str, pool: str | None) -> Iterator[None]:
        del what, pool
        self.spark.addTag(tag)
        try:
            yield
        finally:
            self.spark.removeTag(tag)

    @contextmanager
    def described(self, what: str) -> Iterator[None]:
        del what
        yield

    def cancel_tagged(self, tag: str) -> None:
        self.spark.interruptTag(tag)

    def tasks_of(self, tag: str) -> tuple[int, int]:
        del tag
        return 0, 0

    def announce(self, key: str, text: str | None) -> None:
        if text is None:
            self.spark.conf.unset(key)
        else:
            self.spark.conf.set(key, text)

    def qualified(self, path: str, scheme: str | None) -> str:
        return connect.qualified(self.spark, path, scheme)

    def new_temporary_directory(self) -> Path:
        if not connect.has_own_server():
            raise ConfigurationError(
                "the query has no checkpointLocation, and over Spark Connect a temporary directory "
                "of this process is not on the server: set .option('checkpointLocation', path)"
            )
        return Path(tempfile.mkdtemp(prefix="temporary-")).resolve()

    def parts_of_table(self, name: str) -> list[str]:
        parts, place = [], 0
        while True:
            found = _PART.match(name, place)
            if found is None:
                break
            parts.append(found[2] or found[1].replace("``", "`"))
            place = found.end() + 1
            if found.end() == len(name):
                return parts
            if name[found.end()] != ".":
                break
        raise ConfigurationError(
            f"{name!r} is not the name of a table: put parts of it in backticks"
        )

    def default_table_path(self, database: str, table: str) -> str:
        root = self.spark.catalog.getDatabase(database).locationUri
        return f"{root.rstrip('/')}/{table.lower()}"
