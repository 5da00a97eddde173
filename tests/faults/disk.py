"""A disk that fails single operations, or loses power with all that was not synced.

The model is the minimum that POSIX promises: a file's bytes are durable after its sync, a name
after the sync of its directory. The operations are those of :mod:`os` that change a disk. They
really happen until the power is gone.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_OPERATIONS = ("fsync", "link", "unlink", "mkdir", "listdir", "rmdir")


class Disk:
    """Watches the operations below a directory.

    Parameters
    ----------
    root
        What lies there when the disk is made is durable.

    An operation fails by its number, `fails_at`, or by its kind and number, `fails_on`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[str] = []
        self.fails_at: int | None = None
        self.error = OSError(errno.EIO, "fault of the disk")
        self.fails_on: tuple[str, int] | None = None
        self.power_fails_at: int | None = None
        self._is_off = False
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._kinds: dict[int, bool] = {}
        self._held: list[int] = []
        for path in (root, *root.rglob("*")):
            self._note(path)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run with the disk in place of the real one."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _OPERATIONS:
                patch.setattr(os, name, self._watch(name, getattr(os, name)))
            patch.setattr(Path, "open", self._watch("open", Path.open))
            try:
                yield
            finally:
                for descriptor in self._held:
                    os.close(descriptor)

    def after_power_loss(self, target: Path, chance: random.Random) -> None:
        """Build the directory as it is after the power is back.

        A file with a durable name whose bytes were not synced has any part of them, or zeros.
        """
        self._rebuild(self.root.stat().st_ino, target, chance)

    def _watch(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            path = self._path_of(arguments[0]) if arguments else None
            if name == "link":
                path = Path(arguments[1])
            if path is None or not path.is_relative_to(self.root):
                return operation(*arguments, **named)
            if name == "open" and "x" not in (arguments[1] if len(arguments) > 1 else ""):
                name_of = "read"
            else:
                name_of = name
            self.done.append(f"{name_of} {path.relative_to(self.root)}")
            number = len(self.done) - 1
            if self._is_off or number == self.power_fails_at:
                self._is_off = True
                raise OSError(5, "the power is gone", str(path))
            of_its_kind = sum(each.startswith(f"{name_of} ") for each in self.done) - 1
            if number == self.fails_at or (name_of, of_its_kind) == self.fails_on:
                raise OSError(self.error.errno, self.error.strerror, str(path))
            result = operation(*arguments, **named)
            if name == "fsync":
                self._note(path)
            return result

        return watched

    @staticmethod
    def _path_of(argument: Any) -> Path | None:
        if isinstance(argument, int):
            return Path(f"/proc/self/fd/{argument}").readlink()
        return Path(argument) if isinstance(argument, (str, Path)) else None

    def _note(self, path: Path) -> None:
        """Note a file's bytes, or a directory's names, as durable."""
        # Held open, an inode is not given to another file.
        descriptor = os.open(path, os.O_RDONLY)
        self._held.append(descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            self._contents[status.st_ino] = os.pread(descriptor, status.st_size, 0)
            return
        self._names[status.st_ino] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                self._names[status.st_ino][entry.name] = entry.inode()
                self._kinds[entry.inode()] = entry.is_dir()

    def _rebuild(self, inode: int, target: Path, chance: random.Random) -> None:
        target.mkdir()
        for name, child in self._names.get(inode, {}).items():
            if self._kinds[child]:
                self._rebuild(child, target / name, chance)
                continue
            content = self._contents.get(child)
            if content is None:
                content = b"\0" * chance.randrange(200)
            (target / name).write_bytes(content)
