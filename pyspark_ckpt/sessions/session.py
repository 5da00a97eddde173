"""The session of a program: classic, whose JVM this process reaches, or a client of Spark Connect.

:func:`session_of` chooses once, by PySpark's own class, and imports neither client. Everything that
differs between the two is a method here, or asks `has_jvm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.sessions.classic import ClassicSession
from pyspark_ckpt.sessions.connect_session import ConnectSession

_CONNECT = "pyspark.sql.connect."


class Session(Protocol):
    """What the library does with a session of PySpark. Driver only."""

    @property
    def spark(self) -> SparkSession:
        """PySpark's session."""

    @property
    def has_jvm(self) -> bool:
        """Whether this process reaches the JVM of the application: plans, catalogs, its log."""

    @property
    def id(self) -> str:
        """Of the session at its server, or of the application, whose sessions share workers."""

    # Its life.

    @property
    def outlives_client(self) -> bool:
        """Whether a query runs on when this process ends."""

    def why_ended(self) -> str | None:
        """Return why the session runs nothing any more, ``None`` while it may; asks no server."""

    def keep_in_use(self) -> None:
        """Let a server see that the session is in use; it closes idle sessions."""

    def release_ended(self) -> None:
        """End what the library made of a session that has ended."""

    def can_answer_for(self, other: SparkSession) -> bool:
        """Return whether another session runs at the same server and can be asked."""

    def is_active(self, query_id: str) -> bool:
        """Return whether a query runs in this application, in any session that is known here."""

    def runs_on_server(self, query_id: str) -> bool:
        """Return whether a query runs that a client started which may have ended."""

    # Its settings and its size.

    def settings(self) -> dict[str, str]:
        """Return all settings of the session."""

    def setting_of_application(self, key: str) -> str | None:
        """Return a setting that the application was started with."""

    def local_cores(self) -> int | None:
        """Return the cores of an application without executors elsewhere, else ``None``."""

    def tasks_at_once(self) -> int:
        """Return how many tasks the application runs at once; a small job over Spark Connect."""

    # Other sessions of the same application.

    def copy(self, conf: Mapping[str, str]) -> SparkSession:
        """Return a copy of the session, with its conf, views and functions, and with this conf."""

    def session_for_query(self) -> SparkSession | None:
        """Return the session in which a query has to start, ``None`` for the user's own."""

    def new_session(self, takes: Callable[[str], bool]) -> SparkSession:
        """Return a new session with the settings whose keys are taken, or with all of them."""

    def stream_writer(self, df: DataFrame) -> Any:
        """Return PySpark's own stream writer, also where ``df.writeStream`` was replaced."""

    # Jobs.

    def tagged(self, tag: str, what: str, pool: str | None) -> AbstractContextManager[None]:
        """Give the jobs of this thread a tag, and if it has such a description and a pool."""

    def described(self, what: str) -> AbstractContextManager[None]:
        """Give the jobs of this thread a description, if the session has such."""

    def cancel_tagged(self, tag: str) -> None:
        """Cancel the jobs with a tag."""

    def tasks_of(self, tag: str) -> tuple[int, int]:
        """Return how many tasks of jobs with a tag are done, and how many are known."""

    def announce(self, key: str, text: str | None) -> None:
        """Let the jobs of this thread have a setting, ``None`` to unset it."""

    # Names.

    def qualified(self, path: str, scheme: str | None) -> str:
        """Return the URL that Spark makes of a path, or of a URL without an authority."""

    def new_temporary_directory(self) -> Path:
        """Make a directory for a query without a location."""

    def parts_of_table(self, name: str) -> list[str]:
        """Return the parts of a table's name."""

    def default_table_path(self, database: str, table: str) -> str:
        """Return where Spark's own catalog puts a new table."""


def session_of(owner: Any) -> Session:
    """Return the session of a session or DataFrame of PySpark."""
    spark = getattr(owner, "sparkSession", owner)
    return ConnectSession(spark) if _is_connect(owner) else ClassicSession(spark)


def _is_connect(owner: Any) -> bool:
    return any(each.__module__.startswith(_CONNECT) for each in type(owner).__mro__)
