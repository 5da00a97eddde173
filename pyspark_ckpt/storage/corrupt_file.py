"""The error of a file that cannot be used, always in the same form."""

from __future__ import annotations

from pyspark_ckpt.errors import CorruptFileError

RESTORE = "restore from another checkpoint or savepoint"


def corrupt_file(name: str, what: str, to_do: str = RESTORE) -> CorruptFileError:
    """Return the error of a file that is missing, cut short or changed.

    Parameters
    ----------
    name
        The file as users know it.
    what
        What is wrong with the file.
    to_do
        What the user can do.
    """
    return CorruptFileError(f"{name}: {what}; {to_do}")
