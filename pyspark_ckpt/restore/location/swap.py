"""Swaps the content of a location with content that was staged inside it; driver only.

A marker says what is moved out to where and what is moved in from where. It is durable before the
first move and is deleted after the last. Where a file lies shows whether it was moved, so another
driver can finish an interrupted swap.

A file system renames a directory at once. An object store copies and deletes file by file; there, a
second marker says that all is moved out.

Two drivers must not do one swap. So a driver claims it with a numbered file, and the
highest number has it: each step looks for a higher one first. The file is created exclusively, as a
driver's term is. The first number also decides whether a restart in place is done at all: a driver
that starts takes it for void if the driver that wrote the marker has not taken it yet.

A driver that was taken over may still begin an epoch. A restart in place must not lose that epoch,
so it begins the next epoch itself before the first move, as Spark does: of all drivers only one can
create the offsets of an epoch. This epoch has no input; the query runs it first. A restart in place
does not move `offsets/` and `commits/`, so that a late driver still finds the earlier entries.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec

from pyspark_ckpt.errors import CorruptFileError, FencedError
from pyspark_ckpt.formats.layout import ROLLBACK_MARKER, ROLLED_BACK_NAME, SHADOW
from pyspark_ckpt.formats.location_files import RolledBack, read_small_file, write_rolled_back
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.spark.log import SparkLog, checksum_of
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.fenced import FencedStorage, Lease
from pyspark_ckpt.storage.open import Storage

logger = library_logger(__name__)

KEPT_BY_RESTART = "_before_restart-"
STAGED_BY_RESTART = "_restarting-"
_ALL_MOVED_OUT = "_all_moved_out"
_ALL_EXCHANGED = "_all_exchanged"
_RESERVED = "_reserved"
_CLAIM = "_swap-"
_LATE = "_late-"
_FIRST = 1
_VOID = b"void\n"


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """What is swapped for what, as the marker says it.

    `kept` and `staged` are directories inside the location: `outgoing` is moved into the first,
    `incoming` is moved out of the second. `rolled_back` are the epochs that are void afterwards.
    `restarts` says that no epoch is lost, so a start finishes the swap by itself. Each file of
    `exchanged` gets the content of the staged file of that name, and the first directory keeps the
    content before. `epoch` is the last epoch: the next one begins with the staged offsets.
    """

    to: str
    kept: str
    staged: str
    outgoing: tuple[str, ...]
    incoming: tuple[str, ...]
    rolled_back: tuple[RolledBack, ...] = ()
    restarts: bool = False
    exchanged: tuple[str, ...] = ()
    epoch: int | None = None


def is_note(name: str) -> bool:
    """Return whether a name in a kept directory is a note on the swap, and no content."""
    return name in (_ALL_MOVED_OUT, _ALL_EXCHANGED, _RESERVED) or name.startswith((_CLAIM, _LATE))


def swap(location: Storage, wanted: Swap, lease: Lease) -> None:
    """Swap the content of a location; durable on return.

    `lease` is looked at after the marker is written: a driver that takes the location over later
    finds the marker. FencedError means that another driver has found the marker: nothing
    was moved, or that driver does the rest.
    """
    location.write(ROLLBACK_MARKER, [msgspec.json.encode(wanted)])
    try:
        lease.check()
    except BaseException:
        _withdraw_unless_claimed(location, wanted)
        raise
    if not _claims(location, wanted).take(_FIRST, _driver()):
        raise _taken_over(location)
    if not _carry_out(location, wanted, _Claim(location, wanted, _FIRST)):
        raise FencedError(
            f"{location.url}: another driver has begun an epoch after epoch {wanted.epoch}, so the "
            "content of the location stays as it is. Run a query once at a time: let that driver "
            "run it, or start the query again once it has ended"
        )


def begun_swap(location: Storage) -> Swap | None:
    """Return the swap that was begun in a location, ``None`` without one."""
    try:
        return read_small_file(
            location,
            ROLLBACK_MARKER,
            Swap,
            "the names that a rollback swaps",
            "move the directories next to it by hand, or restore a checkpoint into a fresh "
            "checkpointLocation",
        )
    except FileNotFoundError:
        return None


def finish_swap(location: Storage, begun: Swap) -> bool:
    """Do the rest of a swap, whatever part of it was done.

    Returns whether the swap is done now. Void instead are a restart in place that nobody has
    claimed, because its driver may have been paused while other drivers ran, a restart in place
    after which another driver has begun an epoch, and a rollback that its driver took back. Nothing
    of them was done.
    """
    if begun.restarts and _withdraw_unless_claimed(location, begun):
        return False
    if not begun.restarts and _is_void(location, begun):
        _remove_marker(location, begun)
        return False
    number = _claims(location, begun).take_next(_driver())
    return _carry_out(location, begun, _Claim(location, begun, number))


def finish_restart(location: Storage) -> Swap | None:
    """Finish a restart in place that was interrupted after its first claim.

    The new content is complete by then, and no epoch is lost.

    Returns ``None`` if there was nothing to finish. FencedError means that another driver finishes
    the restart, too.
    """
    begun = None
    with suppress(CorruptFileError):  # a start refuses it with what to do
        begun = begun_swap(location)
    if begun is None or not begun.restarts:
        return None
    is_done = finish_swap(location, begun)
    was = "finished" if is_done else "gave up"
    logger.warning("%s: %s an interrupted restart in place: %s", location.url, was, begun.to)
    return begun if is_done else None


live_shadows: set[str] = set()
"""The names of the directories of this process's shadows."""


def remove_leftovers_of_restarts(location: FencedStorage) -> None:
    """Remove what restarts in place and shadows of earlier drivers left.

    ``FencedError`` is raised if another driver has taken the query over. What that driver works on
    stays.
    """
    # Listed before the look: what a driver makes that takes over after it is not in the list.
    for name in [name for name in location.list() if _is_left(name)]:
        location.delete_directory(name)


def _is_left(name: str) -> bool:
    is_shadow = name.startswith(SHADOW) and name not in live_shadows
    return is_shadow or name.startswith((KEPT_BY_RESTART, STAGED_BY_RESTART))


class _Claim:
    """The right to do the steps of a swap, until another driver claims a higher number."""

    def __init__(self, location: Storage, begun: Swap, number: int) -> None:
        self._location = location
        self._begun = begun
        self._claims = _claims(location, begun)
        self._number = number

    def check(self) -> None:
        """Check that no other driver has claimed or finished the swap."""
        # The claims are removed some time after the marker, so the marker is read last.
        if self._claims.has(self._number + 1) or begun_swap(self._location) != self._begun:
            raise _taken_over(self._location)


def _carry_out(location: Storage, begun: Swap, claim: _Claim) -> bool:
    try:
        return _do_rest(FencedStorage(location, claim), begun)
    except OSError:
        claim.check()  # what a step needs is gone because another driver has done the step
        raise


def _do_rest(location: FencedStorage, begun: Swap) -> bool:
    """Do the steps that were not done; return ``False`` if the swap is void instead."""
    if begun.epoch is not None and not _reserve(location, begun, begun.epoch):
        location.delete([ROLLBACK_MARKER])
        return False
    _move_out(location, begun)
    # Never moved in: another one would have to be deleted, perhaps that of a later rollback.
    rewritten = {ROLLED_BACK_NAME} if begun.rolled_back else set()
    incoming = [name for name in begun.incoming if name not in rewritten]
    for name in incoming:
        if location.exists(f"{begun.staged}/{name}"):
            _move_in(location, begun, name)
    location.check()
    missing = [name for name in incoming if not location.exists(name)]
    if missing:
        raise _deleted(location, begun, missing)
    if begun.rolled_back:
        write_rolled_back(location, begun.rolled_back)
    _exchange(location, begun)
    location.delete_directory(begun.staged)
    location.delete([ROLLBACK_MARKER])
    return True


def _reserve(location: FencedStorage, begun: Swap, epoch: int) -> bool:
    """Begin the epoch after the last one, unless that is done, so that no other driver does.

    Returns whether no other driver has begun an epoch. A swap that has begun it is never void.
    """
    note, name = f"{begun.kept}/{_RESERVED}", f"offsets/{epoch + 1}"
    if location.exists(note):
        return True
    staged = f"{begun.staged}/{name}"
    if not location.exists(staged):
        raise _deleted(location, begun, [name])
    log = SparkLog(location)
    if (log.begun_epoch() or 0) > epoch + 1:
        return False  # many epochs further Spark deletes the entry of the other driver
    try:
        location.write(name, [location.read(staged)])
    except FileExistsError:
        reserved_by = log.offsets_entry(epoch + 1).reserved_by
        if reserved_by == begun.staged:  # by the swap that this one undoes
            location.replace(name, location.read(staged))
        elif reserved_by != begun.kept:
            return False
    location.write(note, [b"the next epoch has begun\n"])
    return True


def _exchange(location: FencedStorage, begun: Swap) -> None:
    """Replace files with the staged ones, and keep what they were, unless that is done."""
    if not begun.exchanged or location.exists(f"{begun.kept}/{_ALL_EXCHANGED}"):
        return
    for name in begun.exchanged:
        if not location.exists(f"{begun.staged}/{name}"):
            raise _deleted(location, begun, [name])
        with suppress(FileExistsError, FileNotFoundError):  # it is kept, and may be away now
            location.write(f"{begun.kept}/{name}", [location.read(name)])
        # A start that has looked at the old file finds another one, also with the same content.
        location.delete([checksum_of(name)])
        location.replace(name, location.read(f"{begun.staged}/{name}"))
    location.write(f"{begun.kept}/{_ALL_EXCHANGED}", [b"all of it is here\n"])


def _deleted(location: Storage, begun: Swap, names: list[str]) -> CorruptFileError:
    return CorruptFileError(
        f"{location.url}: {', '.join(names)} of {begun.to} is neither there nor in "
        f"{begun.staged}: somebody has deleted it. Move what is in {begun.kept} back by hand, "
        f"delete {ROLLBACK_MARKER}, and start the query again"
    )


def _move_out(location: FencedStorage, begun: Swap) -> None:
    """Move out what was in the location, unless that is done."""
    if location.moves_at_once:
        for name in begun.outgoing:
            if not location.exists(f"{begun.kept}/{name}"):
                location.move(name, f"{begun.kept}/{name}")
        return
    # Some files of a directory may be moved. So a name that is there does not show that all are,
    # and what is moved in later would be taken for what has to go.
    if location.exists(f"{begun.kept}/{_ALL_MOVED_OUT}"):
        return
    for name in begun.outgoing:
        location.move(name, f"{begun.kept}/{name}")
    location.write(f"{begun.kept}/{_ALL_MOVED_OUT}", [b"all of it is here\n"])


def _move_in(location: FencedStorage, begun: Swap, name: str) -> None:
    """Move a name in. What an overtaken driver has made there since the move out is set aside.

    Its task makes the directory of its state store again.
    """
    staged = f"{begun.staged}/{name}"
    try:
        location.move(staged, name)
        return
    except FileExistsError:
        # A driver with a lower claim may have moved it in since its own look at the claims.
        if not location.exists(staged):
            return
    # Two drivers choose the same name. So a driver that is paused before this move cannot move
    # away the new content: another driver, which has moved that in, has used the name.
    asides = (f"{begun.kept}/{_LATE}{name}-{number}" for number in count(1))
    aside = next(path for path in asides if not location.exists(path))
    location.move(name, aside)
    try:
        location.move(staged, name)
    except OSError:
        if location.exists(staged):
            raise  # something came again: the next start continues
        if not location.exists(name):  # it was moved in just before this driver set it aside
            location.move(aside, name)


def _withdraw_unless_claimed(location: Storage, begun: Swap) -> bool:
    """Make a swap void that nobody has claimed; return whether it is void."""
    is_claimed = not _claims(location, begun).take(_FIRST, _VOID)
    # Whoever made it void may have been killed before it deleted the marker.
    if is_claimed and not _is_void(location, begun):
        return False
    _remove_marker(location, begun)
    return True


def is_untouched(location: Storage, begun: Swap) -> bool:
    """Return whether nothing was moved yet, so that the query of the location may run."""
    return not _claims(location, begun).has(_FIRST)


def _is_void(location: Storage, begun: Swap) -> bool:
    path = _claim_path(begun, _FIRST)
    return location.exists(path) and location.read(path) == _VOID


def _remove_marker(location: Storage, begun: Swap) -> None:
    if begun_swap(location) == begun:
        location.delete([ROLLBACK_MARKER])


def _claims(location: Storage, begun: Swap) -> Claims:
    return Claims(location, partial(_claim_path, begun))


def _driver() -> bytes:
    """Return the content of a claim, which no other driver writes."""
    return secrets.token_hex(16).encode()


def _claim_path(begun: Swap, number: int) -> str:
    return f"{begun.kept}/{_CLAIM}{number}"


def _taken_over(location: Storage) -> FencedError:
    return FencedError(
        f"{location.url}: another driver has taken over the change of this location. Run a query "
        "once at a time: let that driver run it, or start the query again once it has ended"
    )
