"""The error of a file that cannot be used, always in the same form."""

from __future__ import annotations

import zipfile
import zlib

import msgspec

from pyspark_ckpt.errors import CorruptFileError

ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, KeyError, ValueError, NotImplementedError, RuntimeError,
    EOFError,
)  # fmt: skip
"""What Python's ``zipfile`` raises for a damaged archive, besides errors of the disk."""

JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a damaged file; the last for one that a stranger has nested deeply."""

RESTORE = "restore from another checkpoint or savepoint"


def corrupt_file(name: str, what: str, to_do: str = RESTORE) -> CorruptFileError:
    """Return the error of a file that is missing, cut short or changed."""
    return CorruptFileError(f"{name}: {what}; {to_do}")
