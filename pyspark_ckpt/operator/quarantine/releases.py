"""Releases of quarantined keys: requests, and what each epoch decided, as files.

::

    releases/armed                              a key is quarantined, or was once; has the epoch
                                                that quarantined the first one
    releases/<time>-<random>.request.json       a request to release keys
    releases/epoch-<timeline>-<epoch>.json      the requests that an epoch carries out

Each epoch after the one that quarantined the first key decides once which requests it carries out.
The one that quarantined it decides nothing, also when it is repeated: the key is not quarantined
where it begins, so a request would be taken for done and have no effect. The first task that asks
writes the decision exclusively. All other tasks of the epoch read that file, and so do all attempts
to repeat the epoch. So a request has its effect in one epoch, the same in every attempt. A rollback
begins a new timeline, in which epochs decide again. A request that an epoch has carried out is done
in all timelines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Protocol

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.formats.layout import RELEASES
from pyspark_ckpt.formats.mailbox import Mailbox, file_name
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.descriptor import OnError, OperatorDescriptor, Runtime
from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.open import open_storage

logger = library_logger(__name__)
_ARMED = "armed"
_EPOCH = re.compile(r"epoch-([0-9]{1,9})-([0-9]{1,18})\.json")
_HEXADECIMAL = msgspec.Meta(pattern="^([0-9a-f]{2})*$")

MAX_BYTES = 4 << 20
"""Of a request. A decision takes so many bytes of requests, and at least one request."""

BEFORE_ALL = -1

KEPT = 50
"""How many decisions stay, for epochs that are repeated."""

NO_KEY: ReleasedKeys = frozenset()


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of an operator that are released: stored keys as hexadecimal digits, or all."""

    uid: str
    keys: tuple[Annotated[str, _HEXADECIMAL], ...] | None = None


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to release keys."""

    release: Release
    requested_at_ms: int


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an epoch releases, and the requests that need no other epoch."""

    releases: tuple[Release, ...] = ()
    done: tuple[str, ...] = ()

    def releases_of(self, uid: str) -> ReleasedKeys:
        """Return the keys of an operator that the epoch releases."""
        own = [release for release in self.releases if release.uid == uid]
        if any(release.keys is None for release in own):
            return EVERY_KEY
        return frozenset(bytes.fromhex(key) for release in own for key in release.keys or ())


class _Armed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last epoch that decides nothing."""

    timeline: int
    epoch: int


class ReleasedKeys(Protocol):
    """The stored keys that an epoch releases."""

    def __contains__(self, key: object, /) -> bool:
        """Return whether the epoch releases a stored key."""

    def __len__(self) -> int:
        """Return 0 if it releases no key."""


class _EveryKey:
    def __contains__(self, key: object, /) -> bool:
        return True

    def __len__(self) -> int:
        return 1


EVERY_KEY = _EveryKey()


class ReleaseFiles:
    """The releases of one query.

    `timeline` is the number of rollbacks that the location has had.
    """

    def __init__(self, storage: Storage, timeline: int = 0) -> None:
        self._storage = storage
        self._timeline = timeline
        self._mailbox = Mailbox(storage, RELEASES, "release the keys again", MAX_BYTES)

    def arm(self, epoch: int) -> None:
        """Have the epochs after this one decide, because it has a quarantined key.

        `epoch` is :data:`BEFORE_ALL` if each epoch has to decide.
        """
        if not self.is_armed:
            with suppress(FileExistsError):
                self._mailbox.write_file(_ARMED, _Armed(timeline=self._timeline, epoch=epoch))

    @property
    def is_armed(self) -> bool:
        """Whether there is a quarantined key, or was once."""
        return self._storage.exists(f"{RELEASES}/{_ARMED}")

    def request(self, release: Release) -> str:
        """Write a request, durable on return; return its id."""
        at_ms = now_ms()
        request = ReleaseRequest(release=release, requested_at_ms=at_ms)
        size_bytes = len(msgspec.json.encode(request))
        if size_bytes > MAX_BYTES:
            keys = len(release.keys or ())
            raise StateValueError(
                f"operator {release.uid!r}: a release of {keys} keys takes {size_bytes} bytes, "
                f"more than {MAX_BYTES}: release them in {size_bytes // MAX_BYTES + 1} parts, or "
                "give no keys to release all"
            )
        return self._mailbox.post(request, at_ms)

    def decide(self, epoch: int) -> Decision:
        """Return what an epoch releases; decide it if no task has."""
        if not self._decides(epoch):
            return Decision()
        found = self.decided(epoch)
        if found is not None:
            return found
        names = self._mailbox.names()
        before = self._newest_before(epoch, names)
        done = () if before is None else self._decision(before).done
        requests = map(file_name, self._mailbox.ids(names))
        waiting = [name for name in requests if name not in done]
        taken = self._first_releases(waiting)
        kept = [name for name in done if name in names]
        decision = Decision(releases=tuple(taken.values()), done=(*kept, *taken))
        try:
            self._mailbox.write_file(self._name(epoch), decision)
        except FileExistsError:
            return self._of(epoch)
        self._trim(epoch, names, done)
        return decision

    def _first_releases(self, waiting: Sequence[str]) -> dict[str, Release]:
        """Return the first requests by their names, as many as one decision takes.

        Others wait for the next. So do those that this user may not read: a request of somebody
        else must not end the query.
        """
        taken: dict[str, Release] = {}
        size_bytes = 0
        for name in waiting:
            path = f"{RELEASES}/{name}"
            try:
                size_bytes += self._storage.size_bytes(path) or 0
                if taken and size_bytes > MAX_BYTES:
                    break
                request = self._mailbox.read_file(name, ReleaseRequest, MAX_BYTES)
                taken[name] = request.release
            except PermissionError as exc:
                logger.warning(
                    "%s releases nothing, because this user may not read it (%s): let the user of "
                    "the executors read it, or delete it and release the keys again",
                    self._storage.url_of(path),
                    exc,
                )
        return taken

    def decided(self, epoch: int) -> Decision | None:
        """Return what an epoch releases, ``None`` if no task has decided it."""
        path = f"{RELEASES}/{self._name(epoch)}"
        return self._of(epoch) if self._storage.exists(path) else None

    def _decides(self, epoch: int) -> bool:
        if not self.is_armed:
            return False
        armed = self._mailbox.read_file(_ARMED, _Armed, MAX_BYTES)
        return (self._timeline, epoch) > (armed.timeline, armed.epoch)

    def _of(self, epoch: int) -> Decision:
        return self._decision(self._name(epoch))

    def _decision(self, name: str) -> Decision:
        return self._mailbox.read_file(name, Decision, 2 * MAX_BYTES)

    def _newest_before(self, epoch: int, names: list[str]) -> str | None:
        found = [(_place(name), name) for name in names if _EPOCH.fullmatch(name)]
        earlier = [each for each in found if each[0] < (self._timeline, epoch)]
        return max(earlier)[1] if earlier else None

    def _trim(self, epoch: int, names: list[str], done: tuple[str, ...]) -> None:
        """Delete decisions that no attempt needs, and requests that were done before them."""
        old = [
            name
            for name in names
            if _EPOCH.fullmatch(name) and _place(name) < (self._timeline, epoch - KEPT)
        ]
        if not old:
            return
        done_then = set(self._decision(max(old, key=_place)).done) & set(done)
        self._mailbox.delete([*old, *sorted(done_then)])

    def _name(self, epoch: int) -> str:
        return f"epoch-{self._timeline}-{epoch}.json"


def _place(name: str) -> tuple[int, int]:
    match = _EPOCH.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2])


def release_files(runtime: Runtime) -> ReleaseFiles:
    """Return the releases of the query that a task belongs to."""
    storage = open_storage(runtime.checkpoints_directory)
    if runtime.query_subdirectory:
        storage = storage.child(runtime.query_id)
    return ReleaseFiles(storage, len(runtime.rolled_back))


class ReleasesOfEpoch:
    """What an epoch releases of an operator; reads a file only when it is asked."""

    def __init__(self, runtime: Runtime, uid: str, epoch: int) -> None:
        self._files: Callable[[], ReleaseFiles] = lambda: release_files(runtime)
        self._uid = uid
        self._epoch = epoch

    def keys(self) -> ReleasedKeys:
        """Return the keys that the epoch releases, as the task that woke the subtask decided."""
        decision = self._files().decided(self._epoch)
        return NO_KEY if decision is None else decision.releases_of(self._uid)

    def arm(self) -> None:
        """Have later epochs decide what they release."""
        self._files().arm(self._epoch)


class _NoReleases:
    """What an epoch without a query releases: no key."""

    def keys(self) -> ReleasedKeys:
        """Return no key."""
        return NO_KEY

    def arm(self) -> None:
        """Do nothing."""


NO_RELEASES = _NoReleases()


def request_release(
    storage: Storage,
    operators: Sequence[OperatorDescriptor],
    uid: str,
    keys: Iterable[Any] | None,
) -> str:
    """Write a request to release keys of an operator; it is durable on return.

    `keys` are values of a single key column, or tuples of values; ``None`` stands for all
    quarantined keys.
    """
    if isinstance(keys, str | bytes):  # its characters would be taken for keys
        raise PlanError(
            f"operator {uid!r}: the keys to release are {keys!r}, which is one key: give a list"
        )
    quarantining = {each.uid: each for each in operators if each.on_error is OnError.QUARANTINE}
    operator = quarantining.get(uid)
    if operator is None:
        raise PlanError(
            f"the query has no operator {uid!r} with onError='quarantine': it has "
            f"{', '.join(map(repr, quarantining)) or 'none'}"
        )
    stored = None
    if keys is not None:
        places = KeyPlaces(struct_type(operator.key_schema), operator.max_parallelism)
        given = (key if isinstance(key, tuple) else (key,) for key in keys)
        stored = tuple(places.place(key)[1].hex() for key in given)
    return ReleaseFiles(storage).request(Release(uid=uid, keys=stored))
