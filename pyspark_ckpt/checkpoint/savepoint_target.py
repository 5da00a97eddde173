"""Where a savepoint that was asked for from outside may go."""

from __future__ import annotations

from pyspark_ckpt.errors import ConfigurationError, UnsafePathError
from pyspark_ckpt.storage.open import open_storage


def savepoint_target(wanted: str | None, savepoints_directory: str | None) -> str:
    """Return the directory for a savepoint that a request asks for.

    Whoever may write a checkpoints directory can post a request, and must not have the driver
    write elsewhere. So it goes into the directory that the query was configured with, or below.

    Parameters
    ----------
    wanted
        A path relative to that directory, or one inside of it; ``None`` for itself.
    savepoints_directory
        ``spark.ckpt.execution.checkpointing.savepoint-dir`` of the query.

    Raises
    ------
    ConfigurationError
        If the query has none.
    UnsafePathError
        If it is not inside, also through a symbolic link.
    """
    if savepoints_directory is None:
        raise ConfigurationError(
            "a savepoint can be asked for from outside only if the query was started with "
            "spark.ckpt.execution.checkpointing.savepoint-dir"
        )
    root = open_storage(savepoints_directory)
    relative = "." if wanted in (None, ".", root.url) else str(wanted)
    relative = relative.removeprefix(f"{root.url}/")
    outside = UnsafePathError(
        f"{wanted!r} is not inside of the query's savepoint-dir {root.url}: give a directory "
        "below it"
    )
    if relative.startswith("/") or "://" in relative:
        raise outside
    try:
        return root.url if relative == "." else root.url_of(relative)
    except UnsafePathError:
        raise outside from None
