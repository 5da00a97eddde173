"""An object store in memory, under the real code of the S3 storage.

Requests may fail with 503 or with a conflict (409). An answer may be lost after the request took
effect, or the request may take effect long after its client gave up. A listing may lack names that
are new. What is promised is what S3 promises: an object appears whole, and of several conditional
puts of one name one succeeds.
"""

from __future__ import annotations

import errno
from typing import Any

from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.servers.remote import RequestCounts
from pyspark_ckpt.storage.servers.s3 import S3Storage
from tests.simulation.scheduler import Process, Scheduler

NEW_FOR_MS = 2_000
"""How long a listing may lack a new name."""


class _AnswerError(Exception):
    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.response = {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


class Bucket:
    """The objects, and the requests of fsspec's file system that the storage sends.

    Parameters
    ----------
    scheduler
        Is asked before each request who runs next.
    """

    is_exclusive = True

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.objects: dict[str, bytes] = {}
        self._metadata: dict[str, Any] = {}
        self._made_ms: dict[str, int] = {}
        self.fails = 0.0
        self.before_change: Any = lambda path, kind: None
        self._network = Process("network")

    def call_s3(self, method: str, *, Bucket: str, Key: str = "", **more: Any) -> dict[str, Any]:
        """Answer a request of S3's own interface."""
        if method == "list_multipart_uploads":
            return {}
        path = f"{Bucket}/{Key}"
        if method == "head_object":
            self._request("head", path)
            if path not in self.objects:
                raise FileNotFoundError(path)
            return {"Metadata": self._metadata[path]}
        assert method == "put_object"
        chance = self._scheduler.chance
        if self.fails and chance.random() < self.fails / 2:
            self._put_later(path, more)
            raise OSError(errno.ETIMEDOUT, "the answer is lost")
        self._request("put", path)
        self._put(path, more)
        if self.fails and chance.random() < self.fails / 2:
            if chance.random() < 0.5:
                self._put(path, more)  # the client repeats the request, and hears of its first one
            raise OSError(errno.ETIMEDOUT, "the answer is lost")
        return {}

    def cat_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the content of an object, or a part of it."""
        self._request("get", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def info(self, path: str) -> dict[str, Any]:
        """Return what is known of a name."""
        self._request("head", path)
        if path in self.objects:
            return {"type": "file", "size": len(self.objects[path]), "ETag": path}
        if any(name.startswith(f"{path}/") for name in self.objects):
            return {"type": "directory", "size": 0}
        raise FileNotFoundError(path)

    def ls(self, path: str, *, detail: bool) -> list[str]:
        """Return the names below a prefix, perhaps without new ones."""
        self._request("list", path)
        found = {
            f"{path}/" + name[len(path) + 1 :].partition("/")[0]
            for name in self.objects
            if name.startswith(f"{path}/") and not self._is_hidden(name)
        }
        return sorted(found)

    def find(self, path: str) -> list[str]:
        """Return all names below a prefix, perhaps without new ones."""
        self._request("list", path)
        return sorted(
            name
            for name in self.objects
            if name.startswith(f"{path}/") and not self._is_hidden(name)
        )

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        self._request("delete", path)
        if path in self.objects:
            self.before_change(f"s3://{path}", "delete")
            del self.objects[path]

    def _is_hidden(self, name: str) -> bool:
        age_ms = self._scheduler.now_ms - self._made_ms[name]
        may_lack = bool(self.fails) and not self._scheduler.is_quiet
        return may_lack and age_ms < NEW_FOR_MS and self._scheduler.chance.random() < 0.2

    def _request(self, kind: str, path: str) -> None:
        self._scheduler.point(f"{kind} s3://{path}")
        chance = self._scheduler.chance
        if self._scheduler.is_quiet:
            return
        if self.fails and chance.random() < self.fails:
            if kind == "put" and chance.random() < 0.5:
                raise _translated("ConditionalRequestConflict", 409)
            raise _translated("SlowDown", 503)
        if self.fails and chance.random() < self.fails:
            self._scheduler.sleep(chance.randrange(1, 3_000))

    def _put(self, path: str, more: dict[str, Any]) -> None:
        if path in self.objects and self.is_exclusive:
            raise _translated("PreconditionFailed", 412)
        self.before_change(f"s3://{path}", "create")
        self.objects[path] = bytes(more["Body"])
        self._metadata[path] = more["Metadata"]
        self._made_ms[path] = self._scheduler.now_ms

    def _put_later(self, path: str, more: dict[str, Any]) -> None:
        late_ms = self._scheduler.chance.randrange(1, 20_000)

        def arrive() -> None:
            self._scheduler.sleep(late_ms)
            if path not in self.objects:
                self._scheduler.note(f"a late put of {path} takes effect")
                self._put(path, more)

        self._scheduler.spawn(self._network, "late", arrive)


def _translated(code: str, status: int) -> OSError:
    """Return the error that s3fs makes of an answer."""
    error = OSError(errno.EBUSY, code)
    error.__cause__ = _AnswerError(code, status)
    return error


class BucketStorage(S3Storage):
    """The S3 storage, whose requests go to a bucket in memory.

    Parameters
    ----------
    root
        The bucket and the prefix.
    """

    bucket: Bucket

    def __init__(self, root: str) -> None:
        self._root = root.strip("/")
        self.url = f"s3://{self._root}"
        self._scheme = "s3"
        self._counts = RequestCounts()
        self._file_system = self.bucket  # type: ignore[assignment]

    def _at(self, root: str) -> Storage:
        return BucketStorage(root)
