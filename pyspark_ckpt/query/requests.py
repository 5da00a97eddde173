"""Requests of other processes: a running query claims, carries out and answers them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    ConfigurationError,
    CorruptFileError,
    UnsafePathError,
)
from pyspark_ckpt.formats.layout import REQUESTS
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.formats.requests import Action, Answer, Claimant, Request, RequestFiles
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restarting.shadow_actions import SHADOW_ACTIONS, act_on_shadow
from pyspark_ckpt.spark.jobs import error_text
from pyspark_ckpt.storage.open import Storage, open_storage


def savepoint_target(wanted: str | None, savepoints_directory: str | None) -> str:
    """Return the directory for a savepoint that a request asks for.

    Everybody who may write the checkpoints directory can post a request. A request must not make
    the driver write elsewhere. Therefore the savepoint goes into the configured directory or below.

    `wanted` is a path relative to `savepoints_directory`, or a path or URL of it or inside it;
    ``None`` stands for the directory itself. UnsafePathError is raised if the path leads outside,
    also through a symbolic link.
    """
    if savepoints_directory is None:
        raise ConfigurationError(
            "the query takes no savepoints on request, because it was started without "
            "spark.ckpt.execution.checkpointing.savepoint-dir: set it and start the query again"
        )
    root = open_storage(savepoints_directory)
    try:
        relative = "." if wanted is None else _below(root, wanted)
        return root.url if relative == "." else root.url_of(relative)
    except CkptError:
        raise UnsafePathError(
            f"{wanted!r} is not inside the query's savepoint-dir {root.url}: give a directory "
            "below it"
        ) from None


def _below(root: Storage, wanted: str) -> str:
    """Return a path relative to a directory; it may step upwards, which ``url_of`` refuses."""
    if not wanted.startswith("/") and _URL.match(wanted) is None:
        return wanted
    found = open_storage(wanted).url  # as the directory's own: s3a:// as s3://, file:/ as a path
    if found == root.url:
        return "."
    relative = found.removeprefix(f"{root.url}/")
    if relative == found:
        raise UnsafePathError(f"{found} is not in {root.url}")
    return relative


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class WorkUnderWay:
    """Counts the threads at work; a thread at work does not wait for itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._workers: list[int] = []

    @property
    def is_under_way(self) -> bool:
        """Whether a thread is at work, this one or another."""
        return bool(self._workers)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count this thread as at work while the context lasts."""
        worker = threading.get_ident()
        with self._changed:
            self._workers.append(worker)
        try:
            yield
        finally:
            with self._changed:
                self._workers.remove(worker)
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until no other thread is at work."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: all(n == me for n in self._workers), timeout_seconds)


logger = library_logger(__name__)

POLL_MS = 1000
"""The longest time between two turns of the coordinator; it looks for requests in each turn."""

REMOTE_POLL_MS = 5000
"""The time between two looks at a server: each is a request, which object stores charge for."""

AT_ONCE = 2
"""How many requests are carried out at the same time; others wait."""

_MAX_ERROR = 4000


class StopAction(Protocol):
    """Stops the query with a savepoint."""

    def __call__(
        self, directory: str, savepoint_format: SavepointFormat, /, *, drain: bool
    ) -> Savepoint:
        """Return the savepoint; `drain` lets all event-time timers fire first."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What a request can ask for: a savepoint in a directory, or a stop with a savepoint."""

    savepoint: Callable[[str, SavepointFormat], Savepoint]
    stop: StopAction


class RequestHandler:
    """Claims, carries out and answers the requests to one query.

    `taken` has the ids of the requests that this process has claimed, also in earlier runs, and of
    those with a claim that cannot be read, or that this process may not answer.

    Requests that the driver's user may not read or write stay as they are. The log says so once,
    and the query runs on, because whoever posts them may make their directory as another user.

    `actions` are called in the handler's threads, which `under_way` counts. A request may put a
    savepoint only into `savepoints_directory` or below it.
    """

    def __init__(
        self,
        storage: Storage,
        savepoints_directory: str | None,
        actions: Actions,
        under_way: WorkUnderWay,
    ) -> None:
        self._files = RequestFiles(storage)
        self._where = storage.url
        self._savepoints_directory = savepoints_directory
        self._actions = actions
        self._under_way = under_way
        self._free = threading.Semaphore(AT_ONCE)
        self.taken: set[str] = set()
        self._denied: set[str] = set()
        """The ids of the requests that this process may not claim."""
        self._may_look = True

    def refuse_interrupted(self) -> None:
        """Refuse the requests that an earlier driver claimed and did not answer before it ended."""
        for request_id in self._found(self._files.unanswered_ids):
            if request_id in self.taken:
                continue
            try:
                claim = self._files.claim_of(request_id)
                if claim is not None and claim.by is Claimant.QUERY:
                    self._refuse(
                        request_id,
                        "the query's driver ended before the request was done: repeat it",
                    )
            except (CorruptFileError, UnsafePathError, PermissionError) as exc:
                # It was taken by somebody, and the error is the same in each later turn.
                self.taken.add(request_id)
                logger.warning("%s: request %s has no answer: %s", self._where, request_id, exc)

    def poll(self) -> None:
        """Begin the requests that have not expired; called by the coordinator's thread."""
        for request_id in self._found(self._files.open_ids):
            if request_id in self._denied:
                continue
            if not self._free.acquire(blocking=False):
                return
            has_begun = False
            try:
                has_begun = self._begin(request_id)
            except PermissionError as exc:
                self._denied.add(request_id)
                logger.warning(
                    "%s: request %s is not taken, or not answered: %s. Let the user of this driver "
                    "write in %s, and repeat the request",
                    self._where,
                    request_id,
                    exc,
                    self._directory,
                )
            finally:
                if not has_begun:
                    self._free.release()

    def close(self) -> None:
        """Refuse the open requests, because the query has ended."""
        with _logged(self._where):
            for request_id in self._files.open_ids():
                if request_id in self._denied:
                    continue
                if self._files.claim(request_id, Claimant.QUERY):
                    self._refuse(request_id, "the query has ended: start it and repeat the request")

    def _found(self, ids: Callable[[], list[str]]) -> list[str]:
        """Return ids of requests; none, and a word in the log, where this process may not look."""
        try:
            found = ids()
        except (PermissionError, UnsafePathError) as exc:
            if self._may_look:
                logger.warning(
                    "%s: nobody can ask this query for anything from outside: %s. Let the user of "
                    "this driver read and write in the directory %s",
                    self._where,
                    exc,
                    self._directory,
                )
            self._may_look = False
            return []
        self._may_look = True
        return found

    @property
    def _directory(self) -> str:
        return f"{self._where}/{REQUESTS}"

    def _begin(self, request_id: str) -> bool:
        """Claim a request; return whether a thread carries it out now."""
        self.taken.add(request_id)
        if not self._files.claim(request_id, Claimant.QUERY):
            return False
        try:
            request = self._files.read(request_id)
            if request.expires_at_ms < now_ms():
                raise CheckpointAbortedError(
                    "the request had expired when the query found it: repeat it with a longer "
                    "timeout"
                )
            target = None
            if request.action is not Action.DISCARD:
                target = savepoint_target(request.directory, self._savepoints_directory)
        except (OSError, CkptError) as exc:
            self._refuse(request_id, f"{type(exc).__name__}: {exc}")
            return False
        logger.info(
            "%s: request %s by %s: %s",
            self._where,
            request_id,
            request.requested_by,
            request.action,
        )
        threading.Thread(
            target=self._do,
            args=(request_id, request, target),
            name=f"pyspark_ckpt request {request_id}",
            # The query ends before its savepoint is made, and with it often the program.
            daemon=request.action is not Action.STOP,
        ).start()
        return True

    def _do(self, request_id: str, request: Request, target: str | None) -> None:
        try:
            with self._under_way.under_way(), _logged(self._where):
                answer = self._answer(request, target)
                self._files.answer(request_id, answer)
                self._files.trim()
        finally:
            self._free.release()

    def _answer(self, request: Request, target: str | None) -> Answer:
        try:
            made = self._made(request, target)
        except Exception as exc:
            logger.warning("%s: a requested %s failed", self._where, request.action, exc_info=True)
            return Answer(at_ms=now_ms(), error=error_text(exc)[:_MAX_ERROR])
        if made is None:
            return Answer(at_ms=now_ms())
        return Answer(
            at_ms=now_ms(),
            path=made.path,
            epoch=made.epoch,
            size_bytes=made.size_bytes,
            files=made.files,
        )

    def _made(self, request: Request, target: str | None) -> Savepoint | None:
        if request.action in SHADOW_ACTIONS:
            return act_on_shadow(self._where, request.action, target)
        assert target is not None  # of a savepoint
        if request.action is Action.STOP:
            return self._actions.stop(target, request.format, drain=request.drain)
        return self._actions.savepoint(target, request.format)

    def _refuse(self, request_id: str, why: str) -> None:
        self._files.answer(request_id, Answer(at_ms=now_ms(), error=why[:_MAX_ERROR]))
        logger.warning("%s: request %s is refused: %s", self._where, request_id, why)


class _logged:  # noqa: N801  # reads as the statement it is
    """Logs an error of a request and suppresses it: the query runs on, without an answer."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.warning("%s: a request failed: %s: %s", self._where, type(error).__name__, error)
        return True
