"""Exclusive names on whatever file system is mounted: by a hard link, else by a rename.

A file system without hard links (SMB, many that are made with FUSE) may still rename without
replacing. One that has neither cannot be used, and a query finds that out before it starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pyspark_ckpt.errors import ConfigurationError

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.EINVAL}
"""What file systems without hard links answer; that of rclone answers EIO."""

_NO_RENAME = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_RENAME_NOREPLACE = 1
_WORKING_DIRECTORY = -100
_MOUNTS = Path("/proc/self/mountinfo")

_usable_devices: set[int] = set()


def give_name(temporary: Path, path: Path) -> None:
    """Give a whole file its name, if the name is not used; the file may lose its temporary name.

    ``FileExistsError`` is raised if the name is used by another file. ``OSError`` is raised if the
    file system has neither hard links nor a rename that replaces nothing.
    """
    try:
        _link_or_rename(temporary, path)
    except OSError:
        # A server that got the request twice refuses the second one, and that is what we hear of.
        # Or it made the link and answered with an error; then the rename finds the name taken.
        with suppress(OSError):
            if temporary.samefile(path):
                return
        raise


def check_mount(directory: Path) -> None:
    """Check that a directory's file system can create files exclusively; nothing is left there.

    The check is made once in this process for each file system. A directory without permission to
    write is not checked: the first write to it fails with its own error.
    """
    while not directory.is_dir():
        directory = directory.parent
    device = directory.stat().st_dev
    if device in _usable_devices:
        return
    mark = secrets.token_hex(8)
    path = directory / f".{mark}.probe.tmp"
    files = [directory / f".{mark}.{number}.tmp" for number in range(2)]
    try:
        is_checked = _check(directory, files, path)
    finally:
        for file in (*files, path):
            with suppress(OSError):
                file.unlink()
    if is_checked:
        _usable_devices.add(device)


def kind_of_mount(directory: Path) -> str:
    """Return the kind of file system that a directory is on, such as ``nfs4``."""
    found, longest = "unknown", -1
    with suppress(OSError, IndexError):
        for line in _MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            place = Path(before.split()[4].replace("\\040", " "))
            if directory.is_relative_to(place) and len(place.parts) >= longest:
                found, longest = after.split()[0], len(place.parts)
    return found


def _check(directory: Path, files: list[Path], path: Path) -> bool:
    """Check a directory's file system; return whether that was possible."""
    try:
        for file in files:
            file.touch(exist_ok=False)
    except OSError:
        return False
    advice = (
        "mount it with hard links (a local disk, NFS, or SMB from Linux 5 on), or use a storage "
        "that is not mounted, such as s3://bucket/prefix: see docs/storages.md"
    )
    where = f"{directory} is on a file system of kind {kind_of_mount(directory.resolve())!r}"
    try:
        give_name(files[0], path)
    except OSError as exc:
        raise ConfigurationError(
            f"{where}, which has neither hard links nor a rename that replaces nothing "
            f"({exc.strerror}), so two drivers could write one checkpoint: {advice}"
        ) from exc
    with suppress(FileExistsError):
        give_name(files[1], path)
        raise ConfigurationError(f"{where}, which gave one name to two files: {advice}")
    if not path.exists():
        raise ConfigurationError(
            f"{where}, which does not show a file that was just written (a stale cache): {advice}"
        )
    return True


def _link_or_rename(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        _rename(temporary, path, exc)


def _rename(temporary: Path, path: Path, no_link: OSError) -> None:
    """Rename a file unless the name is used."""
    renameat2 = _renameat2()
    if renameat2 is None:
        raise no_link
    names = (os.fsencode(temporary), os.fsencode(path))
    here = _WORKING_DIRECTORY
    if renameat2(here, names[0], here, names[1], _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        if number in _NO_RENAME:
            raise no_link
        raise OSError(number, os.strerror(number), str(path))


@cache
def _renameat2() -> Any:
    """Return the function of the C library, ``None`` on a system without it."""
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
