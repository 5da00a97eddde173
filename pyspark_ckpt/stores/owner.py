"""Which ``checkpointLocation`` owns a checkpoints directory that is not inside the location.

The directory is found by the query's id, and a copy of a location has the same id. Therefore a
location has a random token, and the directory records its owner's token. A copy has the same token
too. Therefore the record also says where the owner's token is: by path, and by file.

Either path or file may change: when the location is moved, or restored at its path. Then a record
with the next number has the new place. Only a local file is recognised after a move. On other
storages the path has to be the same. No record is ever replaced. Of two starts at once, one gets
the number, and the other one checks again (docs/design/ownership.md).
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from pyspark_ckpt.errors import CheckpointError, RestoreError
from pyspark_ckpt.formats.layout import IDENTITY_NAME, OWNERS, owner_path
from pyspark_ckpt.formats.location_files import read_small_file
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.open import LocalStorage, Storage

_NO_FILE = ""
"""In a record of a storage that does not tell a moved file from a copy."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A location: its token, and where the token is, by path and by file."""

    token: str
    location: str
    file: str


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    token: str


def check_owner(location: Storage, checkpoints: Storage, place: Storage | None = None) -> None:
    """Check that a location may use a checkpoints directory; nothing is written.

    The parameters are the same as for :func:`claim_directory`.
    """
    owner = _newest_owner(checkpoints)
    if owner is not None:
        path = resolved_path(place or location)
        _check(location, _token(location), owner, checkpoints, path)


def owns(location: Storage, checkpoints: Storage) -> bool:
    """Return whether a checkpoints directory records that it belongs to a location."""
    try:
        owner = _newest_owner(checkpoints)
        if owner is None:
            return False
        _check(location, _token(location), owner, checkpoints, resolved_path(location))
    except CheckpointError:
        return False
    return True


def owner_location(checkpoints: Storage) -> str | None:
    """Return the path of the location that owns a checkpoints directory, ``None`` if none does."""
    owner = _newest_owner(checkpoints)
    return None if owner is None else owner.location


def claim_directory(location: Storage, checkpoints: Storage, place: Storage | None = None) -> None:
    """Make a location the owner of a checkpoints directory; durable on return.

    `location` gets a token if it has none yet. `place` is where `location` will be moved to, if it
    was made elsewhere. ``RestoreError`` is raised if another location owns the directory.
    """
    path, owners = resolved_path(place or location), Claims(checkpoints, owner_path)
    while True:
        number = owners.newest()
        owner = _owner(checkpoints, number)
        if owner is not None:
            _check(location, _token(location), owner, checkpoints, path)
        token = _token(location)
        if token is None:
            token = _write_token(location)
        else:
            location.make_durable()  # its writer may have been killed before
        claimed = Owner(token=token, location=path, file=_file(location))
        if claimed == owner:
            checkpoints.make_durable(OWNERS)  # its writer may have been killed before
            return
        if owners.take(number + 1, msgspec.json.encode(claimed)):
            return
        # Another start wrote it at the same time: check again.


def _check(
    location: Storage, token: str | None, owner: Owner, checkpoints: Storage, path: str
) -> None:
    if token == owner.token and (path == owner.location or _is_moved(location, owner)):
        return
    raise RestoreError(
        f"{location.url} does not own the checkpoints in {checkpoints.url}. Their owner is the "
        f"location {owner.location}, and this location may be a copy of it. To use the state, "
        f"start the query at a fresh checkpointLocation with restoreFrom({checkpoints.url}/chk-N). "
        f"If {owner.location} no longer exists and this location takes its place, delete "
        f"{checkpoints.url_of(OWNERS)} first"
    )


def _token(location: Storage) -> str | None:
    if not location.exists(IDENTITY_NAME):
        return None
    return read_small_file(
        location,
        IDENTITY_NAME,
        _Token,
        "the token that identifies the location to its checkpoints",
        "start the query at a fresh checkpointLocation with restoreFrom",
    ).token


def _write_token(location: Storage) -> str:
    with suppress(FileExistsError):  # another start wrote it at the same time
        token = _Token(token=secrets.token_hex(16))
        location.write(IDENTITY_NAME, [msgspec.json.encode(token)])
    written = _token(location)
    assert written is not None  # by this start or another one
    return written


def resolved_path(location: Storage) -> str:
    """Return the path of a storage without symbolic links."""
    return str(location.root.resolve()) if isinstance(location, LocalStorage) else location.url


def _is_moved(location: Storage, owner: Owner) -> bool:
    """Return whether a location is its owner, which was moved, or has two paths."""
    if not isinstance(location, LocalStorage) or _file(location) != owner.file:
        return False
    before = Path(owner.location)
    try:
        if not before.is_absolute() or not (before / IDENTITY_NAME).exists():
            return True
        return before.samefile(location.root)  # a copy by hard links has the same files
    except PermissionError:  # nobody knows what is there
        return False


def _file(location: Storage) -> str:
    """Return a name of the token's file that a move keeps, and that no copy of the file has."""
    if not isinstance(location, LocalStorage):
        return _NO_FILE
    status = location.path(IDENTITY_NAME).stat()
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _newest_owner(checkpoints: Storage) -> Owner | None:
    return _owner(checkpoints, Claims(checkpoints, owner_path).newest())


def _owner(checkpoints: Storage, number: int) -> Owner | None:
    if number == 0:
        return None
    return read_small_file(
        checkpoints,
        owner_path(number),
        Owner,
        "the location that owns the checkpoints",
        "delete the file if no other location uses these checkpoints",
    )
