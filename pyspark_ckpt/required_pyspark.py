"""The PySpark that the library needs. It is not installed over the one of a user or a platform."""

from __future__ import annotations

OLDEST = (4, 0)
_WHERE = (
    "use the Python of a cluster with Spark 4, or run pip install 'pyspark_ckpt[spark]' where "
    "Spark is not installed"
)


def check_pyspark() -> None:
    """Raise ImportError, with what to do, if there is no PySpark or an older one."""
    needed = (
        f"pyspark_ckpt needs PySpark {'.'.join(map(str, OLDEST))} or newer, and this Python has"
    )
    try:
        from pyspark import __version__ as found
    except ImportError as exc:
        raise ImportError(f"{needed} none ({exc}): {_WHERE}") from exc
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        raise ImportError(f"{needed} {found}: {_WHERE}")
