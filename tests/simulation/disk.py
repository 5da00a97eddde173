"""A disk in memory that can lose its power, under the real code of the local storage.

The model is the minimum that POSIX promises: a file's bytes are durable after its sync, a name
after the sync of its directory. What was not synced may be there after a power loss, or not, name
by name; bytes that were not synced may be cut short or zeros. One thing more is promised, as file
systems with a journal do: a rename is done or not done, never half. So nothing has two names, or
none, and the sync of one of the two directories makes both names durable.

:class:`DiskPath`, :class:`DiskOs` and :class:`DiskShutil` take the place of the names of the same
kind in ``pyspark_ckpt.storage.local`` and ``pyspark_ckpt.storage.mount``.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from tests.simulation.scheduler import Scheduler


class _File:
    def __init__(self, number: int) -> None:
        self.number = number
        self.content = b""
        self.durable: bytes | None = None


class _Directory:
    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, _Entry] = {}
        self.durable: dict[str, _Entry] = {}
        self.descriptor = 0


_Entry = _File | _Directory


class _Rename(NamedTuple):
    """A rename that is not durable yet."""

    source: _Directory
    old: str
    target: _Directory
    new: str
    entry: _Entry

    def make_durable(self) -> None:
        """Make it last over a power loss."""
        if self.source.durable.get(self.old) is self.entry:
            del self.source.durable[self.old]
        self.target.durable[self.new] = self.entry

    def undo(self) -> None:
        """Give the entry its former name, as if there had been no rename.

        What has that name by now came later, and is not durable either.
        """
        if self.target.names.get(self.new) is self.entry:
            del self.target.names[self.new]
        self.source.names[self.old] = self.entry


class Disk:
    """All files of a simulated host.

    Parameters
    ----------
    scheduler
        Is asked before each operation who runs next.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._numbers = 0
        self.root = _Directory(0)
        self._renames: list[_Rename] = []
        self.fails = 0.0
        self.before_change: Any = lambda path, kind: None

    def point(self, what: str) -> None:
        """Let others run, or fail, before an operation."""
        self._scheduler.point(what)
        if (
            self.fails
            and not self._scheduler.is_quiet
            and self._scheduler.chance.random() < self.fails
        ):
            raise OSError(errno.ESTALE, "fault of the disk", what)

    def new_file(self) -> _File:
        """Return an empty file without a name."""
        self._numbers += 1
        return _File(self._numbers)

    def new_directory(self) -> _Directory:
        """Return an empty directory without a name."""
        self._numbers += 1
        return _Directory(self._numbers)

    def find(self, parts: tuple[str, ...]) -> _Entry | None:
        """Return what is at a path."""
        at: _Entry = self.root
        for part in parts:
            if not isinstance(at, _Directory):
                return None
            found = at.names.get(part)
            if found is None:
                return None
            at = found
        return at

    def directory(self, parts: tuple[str, ...]) -> _Directory:
        """Return the directory at a path."""
        found = self.find(parts)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", "/" + "/".join(parts))
        if not isinstance(found, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "no directory", "/" + "/".join(parts))
        return found

    def rename(self, source: _Directory, old: str, target: _Directory, new: str) -> None:
        """Give an entry another name; durable after a sync of one of the directories."""
        entry = source.names.pop(old)
        target.names[new] = entry
        self._renames.append(_Rename(source, old, target, new, entry))

    def sync(self, directory: _Directory) -> None:
        """Make the names in a directory durable."""
        here = [directory in (each.source, each.target) for each in self._renames]
        self._make_durable(max((n for n, is_here in enumerate(here, 1) if is_here), default=0))
        directory.durable = dict(directory.names)

    def _make_durable(self, number: int) -> None:
        """Make the first renames durable; a journal has them in their order."""
        for rename in self._renames[:number]:
            rename.make_durable()
        del self._renames[:number]

    def lose_power(self) -> None:
        """Lose what was not synced, or a part of it."""
        done = self._scheduler.chance.randrange(len(self._renames) + 1)
        for rename in reversed(self._renames[done:]):
            rename.undo()
        self._make_durable(done)
        self._renames = []
        self._lose(self.root)

    def _lose(self, directory: _Directory) -> None:
        chance = self._scheduler.chance
        names = dict(directory.durable)
        for name in sorted({*directory.names, *directory.durable}):
            now, synced = directory.names.get(name), directory.durable.get(name)
            kept = now if now is synced or chance.random() < 0.5 else synced
            if kept is None:
                names.pop(name, None)
            else:
                names[name] = kept
        directory.names, directory.durable = names, dict(names)
        for entry in names.values():
            if isinstance(entry, _Directory):
                self._lose(entry)
            elif entry.durable is None:
                whole = entry.content
                cut = whole[: chance.randrange(len(whole) + 1)]
                entry.content = entry.durable = chance.choice([whole, cut, b"\0" * len(whole)])
            else:
                entry.content = entry.durable


class _Status:
    def __init__(self, entry: _Entry) -> None:
        is_file = isinstance(entry, _File)
        self.st_mode = stat.S_IFREG if is_file else stat.S_IFDIR
        self.st_size = len(entry.content) if isinstance(entry, _File) else 0
        self.st_ino = entry.number
        self.st_mtime_ns = entry.number
        self.st_dev = 1
        self.st_uid = 0


class _Open(io.BytesIO):
    """An open file; its number stands for its descriptor."""

    def __init__(self, file: _File, *, writes: bool) -> None:
        super().__init__(b"" if writes else file.content)
        self._file = file
        self._writes = writes

    def fileno(self) -> Any:
        return self._file

    def flush(self) -> None:
        if self._writes and not self.closed:
            self._file.content = self.getvalue()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.flush()
        self.close()


class DiskPath:
    """The part of :class:`pathlib.Path` that the local storage uses, over a disk in memory."""

    disk: Disk

    def __init__(self, *parts: Any) -> None:
        self._text = "/" + "/".join(str(part).strip("/") for part in parts if str(part) != "/")
        self._parts = tuple(part for part in self._text.split("/") if part)

    @classmethod
    def _of(cls, parts: tuple[str, ...]) -> DiskPath:
        path = cls.__new__(cls)
        path._parts = parts
        path._text = "/" + "/".join(parts)
        return path

    def __str__(self) -> str:
        return self._text

    def __fspath__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"DiskPath({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DiskPath) and other._parts == self._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    @property
    def name(self) -> str:
        return self._parts[-1] if self._parts else ""

    @property
    def parent(self) -> DiskPath:
        return self._of(self._parts[:-1])

    @property
    def parents(self) -> tuple[DiskPath, ...]:
        return ()

    def joinpath(self, *parts: str) -> DiskPath:
        return self._of((*self._parts, *parts))

    def __truediv__(self, part: str) -> DiskPath:
        return self._of((*self._parts, *part.split("/")))

    def with_name(self, name: str) -> DiskPath:
        return self._of((*self._parts[:-1], name))

    def resolve(self) -> DiskPath:
        return self

    def expanduser(self) -> DiskPath:
        return self

    def absolute(self) -> DiskPath:
        return self

    def is_symlink(self) -> bool:
        return False

    def is_relative_to(self, other: DiskPath) -> bool:
        return self._parts[: len(other._parts)] == other._parts

    def relative_to(self, other: DiskPath) -> DiskPath | str:
        return "/".join(self._parts[len(other._parts) :])

    def _entry(self) -> _Entry:
        found = self.disk.find(self._parts)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", self._text)
        return found

    def stat(self) -> _Status:
        self.disk.point(f"stat {self._text}")
        return _Status(self._entry())

    def is_dir(self) -> bool:
        return isinstance(self.disk.find(self._parts), _Directory)

    def exists(self) -> bool:
        self.disk.point(f"exists {self._text}")
        return self.disk.find(self._parts) is not None

    def samefile(self, other: DiskPath) -> bool:
        return self._entry() is other._entry()

    def open(self, mode: str) -> _Open:
        self.disk.point(f"open {mode} {self._text}")
        if mode == "rb":
            found = self._entry()
            if not isinstance(found, _File):
                raise IsADirectoryError(errno.EISDIR, "a directory", self._text)
            return _Open(found, writes=False)
        assert mode == "xb"
        directory = self.disk.directory(self._parts[:-1])
        if self.name in directory.names:
            raise FileExistsError(errno.EEXIST, "exists", self._text)
        self.disk.before_change(self._text, "create")
        file = self.disk.new_file()
        directory.names[self.name] = file
        return _Open(file, writes=True)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()

    def mkdir(self, *, exist_ok: bool = False) -> None:
        self.disk.point(f"mkdir {self._text}")
        directory = self.disk.directory(self._parts[:-1])
        if self.name in directory.names:
            if exist_ok:
                return
            raise FileExistsError(errno.EEXIST, "exists", self._text)
        directory.names[self.name] = self.disk.new_directory()

    def unlink(self, *, missing_ok: bool = False) -> None:
        self.disk.point(f"unlink {self._text}")
        directory = self.disk.find(self._parts[:-1])
        if not isinstance(directory, _Directory) or self.name not in directory.names:
            if missing_ok:
                return
            raise FileNotFoundError(errno.ENOENT, "no such file", self._text)
        self.disk.before_change(self._text, "delete")
        del directory.names[self.name]

    def rmdir(self) -> None:
        self.disk.point(f"rmdir {self._text}")
        if self.disk.directory(self._parts).names:
            raise OSError(errno.ENOTEMPTY, "not empty", self._text)
        del self.disk.directory(self._parts[:-1]).names[self.name]

    def rename(self, target: DiskPath) -> None:
        self.disk.point(f"rename {self._text} {target}")
        self._entry()
        there = self.disk.directory(target._parts[:-1])
        self.disk.before_change(self._text, "move")
        here = self.disk.directory(self._parts[:-1])
        replaced = there.names.get(target.name)
        if isinstance(replaced, _Directory) and replaced.names:
            raise OSError(errno.ENOTEMPTY, "not empty", str(target))
        self.disk.rename(here, self.name, there, target.name)

    def replace(self, target: DiskPath) -> None:
        self.disk.point(f"replace {target}")
        entry = self._entry()
        there = self.disk.directory(target._parts[:-1])
        self.disk.before_change(str(target), "replace")
        del self.disk.directory(self._parts[:-1]).names[self.name]
        there.names[target.name] = entry


class DiskOs:
    """The part of :mod:`os` that the local storage uses."""

    O_RDONLY = 0
    path = os.path
    link_replaces = False
    syncs_files = True
    syncs_directories = True

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: DiskPath, flags: int) -> _Directory:
        return self._disk.directory(path._parts)

    def close(self, descriptor: _Directory) -> None:
        """Do nothing: there are no descriptors."""

    def geteuid(self) -> int:
        return 0

    def fstat(self, entry: _Entry) -> _Status:
        return _Status(entry)

    def fsync(self, entry: _Entry) -> None:
        if isinstance(entry, _File):
            self._disk.point("fsync of a file")
            entry.durable = entry.content
        else:
            self._disk.point("fsync of a directory")
            self._disk.sync(entry)

    def listdir(self, path: DiskPath) -> list[str]:
        self._disk.point(f"list {path}")
        return list(self._disk.directory(path._parts).names)

    def unlink(self, path: DiskPath) -> None:
        path.unlink()

    def link(self, source: DiskPath, target: DiskPath) -> None:
        self._disk.point(f"link {target}")
        directory = self._disk.directory(target._parts[:-1])
        entry = source._entry()
        if target.name in directory.names:
            raise FileExistsError(errno.EEXIST, "exists", str(target))
        self._disk.before_change(str(target), "create")
        directory.names[target.name] = entry

    def walk(
        self, path: DiskPath, onerror: Callable[[OSError], None]
    ) -> Iterator[tuple[DiskPath, list[str], list[str]]]:
        found = self._disk.find(path._parts)
        if not isinstance(found, _Directory):
            onerror(FileNotFoundError(path))
            return
        self._disk.point(f"walk {path}")
        inner = [name for name, entry in found.names.items() if isinstance(entry, _Directory)]
        yield path, inner, [name for name in found.names if name not in inner]
        for name in inner:
            yield from self.walk(path / name, onerror)


class DiskShutil:
    """The part of :mod:`shutil` that the local storage uses."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def rmtree(self, path: DiskPath, *, ignore_errors: bool = False) -> None:
        try:
            self._remove(path)
        except OSError:
            if not ignore_errors:
                raise

    def _remove(self, path: DiskPath) -> None:
        directory = self._disk.directory(path._parts)
        for name, entry in list(directory.names.items()):
            if isinstance(entry, _Directory):
                self._remove(path / name)
            else:
                (path / name).unlink(missing_ok=True)
        path.rmdir()
