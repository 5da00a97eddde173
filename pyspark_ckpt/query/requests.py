"""The request desk: a running query deals with what is asked of it from outside its driver.

Where a savepoint that was asked for from outside may go.

Work of other threads that one may have to wait for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    ConfigurationError,
    UnsafePathError,
)
from pyspark_ckpt.formats.requests import Action, Answer, Claimant, Request, RequestFiles
from pyspark_ckpt.history.records import Savepoint, SavepointFormat
from pyspark_ckpt.spark.jobs import error_text
from pyspark_ckpt.storage.open import Storage, open_storage


def savepoint_target(wanted: str | None, savepoints_directory: str | None) -> str:
    """Return the directory for a savepoint that a request asks for.

    Whoever may write a checkpoints directory can post a request, and must not have the driver
    write elsewhere. So it goes into the directory that the query was configured with, or below.

    Parameters
    ----------
    wanted
        A path relative to that directory, or one inside of it; ``None`` for itself.
    savepoints_directory
        ``spark.ckpt.execution.checkpointing.savepoint-dir`` of the query.

    Raises
    ------
    ConfigurationError
        If the query has none.
    UnsafePathError
        If it is not inside, also through a symbolic link.
    """
    if savepoints_directory is None:
        raise ConfigurationError(
            "a savepoint can be asked for from outside only if the query was started with "
            "spark.ckpt.execution.checkpointing.savepoint-dir"
        )
    root = open_storage(savepoints_directory)
    relative = "." if wanted in (None, ".", root.url) else str(wanted)
    relative = relative.removeprefix(f"{root.url}/")
    outside = UnsafePathError(
        f"{wanted!r} is not inside of the query's savepoint-dir {root.url}: give a directory "
        "below it"
    )
    if relative.startswith("/") or "://" in relative:
        raise outside
    try:
        return root.url if relative == "." else root.url_of(relative)
    except UnsafePathError:
        raise outside from None


class WorkUnderWay:
    """Counts who works, by thread; whoever works does not wait for itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._workers: list[int] = []

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Be waited for, for the length of the context."""
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


logger = logging.getLogger(__name__)

POLL_MS = 1000
"""How often requests are looked for."""

AT_ONCE = 2
"""Requests that are dealt with at the same time; others wait their turn."""

_MAX_ERROR = 4000


@dataclass(frozen=True, slots=True)
class Actions:
    """What can be asked for: a savepoint in a directory, or a stop with one, drained or not."""

    savepoint: Callable[[str, SavepointFormat], Savepoint]
    stop: Callable[[str, SavepointFormat, bool], Savepoint]


class RequestDesk:
    """Deals with the requests to one query.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    savepoints_directory
        The configured one: the only place, with all below it, where a request may have a savepoint
        put.
    actions
        What is done; called in threads of the desk.
    under_way
        Counts those threads.
    """

    def __init__(
        self,
        storage: Storage,
        savepoints_directory: str | None,
        actions: Actions,
        under_way: WorkUnderWay,
    ) -> None:
        self._files = RequestFiles(storage)
        self._savepoints_directory = savepoints_directory
        self._actions = actions
        self._under_way = under_way
        self._free = threading.Semaphore(AT_ONCE)
        self._taken: set[str] = set()

    def open(self) -> None:
        """Answer what an earlier driver took and never answered: it ended before.

        Raises
        ------
        OSError, CkptError
            If the requests cannot be read or answered.
        """
        for request_id in self._files.unanswered_ids():
            if request_id in self._taken:
                continue
            claim = self._files.claim_of(request_id)
            if claim is not None and claim.by is Claimant.QUERY:
                self._refuse(request_id, "the driver ended before it was done")

    def poll(self) -> None:
        """Begin what is asked for and not expired; called by the coordinator's thread.

        Raises
        ------
        OSError, CkptError
            If the requests cannot be listed, claimed or answered.
        """
        for request_id in self._files.open_ids():
            if not self._free.acquire(blocking=False):
                return
            has_begun = False
            try:
                has_begun = self._begin(request_id)
            finally:
                if not has_begun:
                    self._free.release()

    def close(self) -> None:
        """Refuse what nobody deals with any more, since the query has ended."""
        with _logged():
            for request_id in self._files.open_ids():
                if self._files.claim(request_id, Claimant.QUERY):
                    self._refuse(request_id, "the query has ended")

    def _begin(self, request_id: str) -> bool:
        """Take a request; return whether a thread deals with it now."""
        self._taken.add(request_id)
        if not self._files.claim(request_id, Claimant.QUERY):
            return False
        try:
            request = self._files.read(request_id)
            if request.expires_at_ms < now_ms():
                raise CheckpointAbortedError("it had expired when the query found it")
            target = savepoint_target(request.directory, self._savepoints_directory)
            savepoint_format = SavepointFormat.of(request.format)
        except (OSError, CkptError) as exc:
            self._refuse(request_id, f"{type(exc).__name__}: {exc}")
            return False
        logger.info("request %s by %s: %s", request_id, request.requested_by, request.action)
        threading.Thread(
            target=self._deal_with,
            args=(request_id, request, target, savepoint_format),
            name=f"pyspark_ckpt request {request_id}",
            daemon=True,
        ).start()
        return True

    def _deal_with(
        self, request_id: str, request: Request, target: str, savepoint_format: SavepointFormat
    ) -> None:
        try:
            with self._under_way.under_way(), _logged():
                answer = self._answer(request, target, savepoint_format)
                self._files.answer(request_id, answer)
                self._files.trim()
        finally:
            self._free.release()

    def _answer(self, request: Request, target: str, savepoint_format: SavepointFormat) -> Answer:
        try:
            if request.action is Action.STOP:
                made = self._actions.stop(target, savepoint_format, request.drain)
            else:
                made = self._actions.savepoint(target, savepoint_format)
        except Exception as exc:
            logger.warning("a requested %s failed", request.action, exc_info=True)
            return Answer(at_ms=now_ms(), error=error_text(exc)[:_MAX_ERROR])
        return Answer(
            at_ms=now_ms(),
            path=made.path,
            epoch=made.epoch,
            size_bytes=made.size_bytes,
            files=made.files,
        )

    def _refuse(self, request_id: str, why: str) -> None:
        logger.warning("request %s is refused: %s", request_id, why)
        self._files.answer(request_id, Answer(at_ms=now_ms(), error=why[:_MAX_ERROR]))


class _logged:  # noqa: N801  # reads as the statement it is
    """Requests never harm the query: what fails is logged, and the requester waits in vain."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.warning("requests could not be dealt with: %s: %s", type(error).__name__, error)
        return True
