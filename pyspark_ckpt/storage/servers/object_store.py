"""Storages over a file system of fsspec: what object stores have in common.

There are no directories, only names with slashes. A directory exists while a file is in it.
"""

from __future__ import annotations

import errno

from fsspec import AbstractFileSystem

from pyspark_ckpt.storage.servers.remote import RemoteStorage


class FsspecStorage(RemoteStorage):
    """Files whose names start with `root`, in a file system that caches no listings."""

    _directory_ending = "/"  # of the object that Hadoop makes for a directory itself

    _no_place: str | None = None
    """The error code of a root that does not exist and that no write creates, such as a bucket."""

    def __init__(self, url: str, root: str, file_system: AbstractFileSystem) -> None:
        super().__init__(url, root)
        self._file_system = file_system

    def _content(self, path: str) -> bytes:
        return bytes(self._file_system.cat_file(path))

    def _part(self, path: str, start: int, end: int) -> bytes:
        return bytes(self._file_system.cat_file(path, start=start, end=end))

    def _look(self, path: str) -> int | None:
        info = self._file_system.info(path)
        return int(info["size"]) if info["type"] == "file" else None

    def _names(self, path: str) -> set[str]:
        # If the path is a file, some file systems list the file itself.
        below = [name.strip("/") for name in self._file_system.ls(path, detail=False)]
        prefix = f"{path.strip('/')}/"
        return {name[len(prefix) :] for name in below if name.startswith(prefix)}

    def _entries(self, path: str) -> dict[str, bool]:
        found: dict[str, bool] = {}
        prefix = f"{path.strip('/')}/"
        for each in self._file_system.ls(path, detail=True):
            name = each["name"].strip("/")
            if name.startswith(prefix):
                # There may also be an object for the directory itself.
                is_directory = each["type"] == "directory" or each["name"].endswith("/")
                name = name[len(prefix) :]
                found[name] = found.get(name, False) or is_directory
        return found

    def _delete(self, path: str) -> None:
        self._file_system.rm_file(path)

    def _delete_below(self, path: str) -> None:
        directory = f"{path.strip('/')}/"
        for name in self._file_system.find(path):
            # Also the object that Hadoop makes for the directory itself, whose name ends with "/".
            if name.lstrip("/").startswith(directory):
                self._file_system.rm_file(name)

    def _is_no_place(self, error: FileNotFoundError) -> bool:
        return self._no_place in codes_of(error)

    def files_below(self, directory: str) -> tuple[str, ...]:
        root = self._path(directory)
        try:
            with self._errors_named(directory):
                found = self._file_system.find(root)
        except FileNotFoundError:
            return ()
        prefix = f"{root.strip('/')}/"
        below = [name.strip("/") for name in found if not name.endswith("/")]
        return tuple(
            f"{directory}/{name[len(prefix) :]}"
            for name in sorted(below)
            if name.startswith(prefix)
        )

    def fingerprint(self, relative: str) -> str:
        with self._errors_named(relative):
            info = self._file_system.info(self._path(relative))
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self.url_of(relative))
        return " ".join(str(info[name]) for name in ("size", *_VERSION_FIELDS) if name in info)

    def copy_within(self, relative: str, target: str) -> None:
        with self._errors_named(relative):
            self._file_system.cp_file(self._path(relative), self._path(target))


def codes_of(error: BaseException) -> set[str | None]:
    """Return the codes of the server's answers that caused an error."""
    codes = set()
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            codes.add(response.get("Error", {}).get("Code"))
        cause = cause.__cause__
    return codes - {None}


_VERSION_FIELDS = ("ETag", "etag", "generation", "LastModified", "mtime", "modification_time")
"""What file systems of fsspec tell of a file that another file of the same name does not have."""
