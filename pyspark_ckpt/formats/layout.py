"""Names of files and directories below a checkpoints directory, and what they mean.

::

    <checkpoints directory>/
      shared/base-<operator>-<subtask>-<epoch>-<snapshot>-<random>.part  of base snapshots
      shared/base-<operator>-<subtask>-<epoch>-<random>.chg  base snapshots of one file
      shared/source-<index>-<name>-<digest>.log             Spark's source logs
      shared/native-<operator id>-<digest>.bin              files of Spark's own operators
      shared/initial-<number>-<time>-<random>.bin           handles of initial states, for epoch 0
      taskowned/segment-<operator>-<subtask>-<epoch>-<random>.chg  changelog segments
      owners/<number>                                       which checkpointLocation owns this
      drivers/<term>                                        one driver; the number only grows
      drivers/ids-<number>                                  how far checkpoint ids have come
      stores/<number>                                       which store has the complete checkpoints
      chk-<id>/_author                                      which driver reserved the id
      chk-<id>/_metadata                                    makes the checkpoint complete
      history/<id>-<time>-<random>.json                     savepoints, and aborted attempts
      requests/<request>.<what>.json                        requests of other processes, and answers
      releases/<request, or epoch>.json                     which quarantined keys an epoch releases
      captures/<time>-<random>.request.json                 which epochs are captured
      captures/epoch-<operator>-<subtask>-<epoch>-<random>.capture    what a subtask saw
      captures/failure-<operator>-<subtask>-<epoch>-<digest>.capture  what a failing task saw
      captures/quarantined-<operator>-<subtask>-<digest>.capture           what quarantined a key
    <savepoints directory>/savepoint-<query>-<random>/
      _metadata, shared/, taskowned/                        native: copies of all files it needs
      shared/canonical-<subtask>-<epoch>-<token>-<random>.parquet  canonical: a subtask's state
      _in_progress                                          which files it has, until it is complete

The operator's mark in a name is a digest of its uid.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection
from typing import NamedTuple

METADATA_NAME = "_metadata"
IN_PROGRESS_NAME = "_in_progress"
"""Present in a savepoint's directory until the savepoint is complete."""

DRAIN_MARKER = "_draining"
"""In the ``checkpointLocation`` while an epoch drains the query, whose watermark is not true."""

DRAINED_COMMIT = "_drained"
"""Next to the marker once that epoch has run: what Spark's commit is replaced by."""

AUTHOR_NAME = "_author"
SHARED = "shared"
TASK_OWNED = "taskowned"
HISTORY = "history"
REQUESTS = "requests"
CAPTURES = "captures"
BUNDLED_MARK = "_bundle"
"""In the directory of shared files of a query in a bundle, which has no data files."""

CHECKPOINTS_DIRECTORY = "pyspark_ckpt"
"""Name of the checkpoints directory inside a query's checkpointLocation."""

POINTED_NAME = "_pointed"
"""Present in a checkpoint's directory once a store elsewhere has a pointer to the checkpoint."""

SEEDINGS = "_seedings"
"""In a checkpointLocation: a number for the begin of each restore, and one for its end."""

ROLLBACK_MARKER = "_rollback"
"""Present while a rollback swaps the content of a checkpointLocation."""

KEPT_BY_ROLLBACK = "_before_rollback-"
"""The directory of what a rollback moved out begins with this, in the checkpointLocation."""

SHADOW = "_shadow-"
"""The directory of a shadow begins with this, in the query's checkpointLocation or elsewhere."""

OUTPUT_PATHS = "_output_paths"
"""In a checkpointLocation: a number for each change of the path that its query writes to."""

IDENTITY_NAME = "_identity.json"
"""In a checkpointLocation: the token that identifies it to a checkpoints directory elsewhere."""

PLACES = "_checkpoints"
"""In a checkpointLocation: numbered records of where its checkpoints are."""

ROLLED_BACK_NAME = "_rolled_back.json"
"""In a checkpointLocation: the epochs that rollbacks made void."""

OWNERS = "owners"
DRIVERS = "drivers"
STORES = "stores"
RELEASES = "releases"
_CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]{0,17})")
_SAVEPOINT = re.compile(r"savepoint-[^/]{1,6}-[0-9a-f]{12}")
_STATE_FILE = re.compile(
    r"\.?(?P<kind>base|segment)-(?P<operator>[0-9a-f]{12})-"
    r"(?P<subtask>[0-9]{1,9})-(?P<epoch>[0-9]{1,18})-"
    r"(?:[0-9a-f]{16}\.chg|(?P<snapshot>[0-9a-f]{16})-[0-9a-f]{8}\.part)(?:\.[0-9a-f]{8}\.tmp)?"
)
_CANONICAL_FILE = re.compile(
    rf"{SHARED}/canonical-[0-9]{{1,9}}-[0-9]{{1,18}}-([0-9a-f]{{16}})-[0-9a-f]{{8}}\.parquet"
)
_ENTRY_OF_HISTORY = re.compile(r"[0-9]{18}-[0-9]{15}-[0-9a-f]{8}\.json")
_NUMBERED = re.compile(r"(?:ids-)?[0-9]{1,18}")
_TEMPORARY_FILE = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")
_SNAPSHOT_ID = re.compile(r"[0-9a-f]{16}")
_SOURCE_FILE = re.compile(
    r"\.?source-[0-9]{1,9}-[0-9a-z.]{1,64}-[0-9a-f]{16}\.log(?:\.[0-9a-f]{8}\.tmp)?"
)


_INITIAL_FILE = re.compile(
    r"\.?initial-(?P<number>[0-9]{1,9})-(?P<time_ms>[0-9]{1,15})-[0-9a-f]{16}\.bin"
    r"(?P<unfinished>\.[0-9a-f]{8}\.tmp)?"
)
_CAPTURE_FILE = re.compile(
    r"epoch-(?P<operator>[0-9a-f]{12})-(?P<subtask>[0-9]{1,9})-(?P<epoch>[0-9]{1,18})-"
    r"[0-9a-f]{16}\.capture"
)
_SPARK_OPERATOR_FILE = re.compile(r"\.?native-[0-9]{1,9}-[0-9a-f]{32}\.bin(?:\.[0-9a-f]{8}\.tmp)?")


def checkpoint_name(checkpoint_id: int) -> str:
    """Return the directory name of a checkpoint."""
    return f"chk-{checkpoint_id}"


def checkpoint_id_of(name: str) -> int | None:
    """Return the id in a checkpoint's directory name, ``None`` for any other name."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def term_path(term: int) -> str:
    """Return the path of the file with which a driver claims its term."""
    return f"{DRIVERS}/{term}"


def seeding_path(number: int) -> str:
    """Return the path of the file with which a driver begins or ends a seeding of a location."""
    return f"{SEEDINGS}/{number}"


def found_fresh_path(number: int) -> str:
    """Return the path of the note that a location was fresh when a seeding began."""
    return f"{SEEDINGS}/{number}-fresh"


def place_path(number: int) -> str:
    """Return the path of a location's record of where its checkpoints are."""
    return f"{PLACES}/{number}"


def output_path_path(number: int) -> str:
    """Return the path of a note on which path a location's query writes to."""
    return f"{OUTPUT_PATHS}/{number}"


def id_mark_path(number: int) -> str:
    """Return the path of a note on how far the ids of checkpoints have come."""
    return f"{DRIVERS}/ids-{number}"


def owner_path(number: int) -> str:
    """Return the path of a note on which location owns the checkpoints directory."""
    return f"{OWNERS}/{number}"


def store_note_path(number: int) -> str:
    """Return the path of a note on which store keeps the completed checkpoints."""
    return f"{STORES}/{number}"


def savepoint_name(query_id: str) -> str:
    """Return a new, unique directory name for a savepoint of a query."""
    return f"savepoint-{query_id[:6]}-{secrets.token_hex(6)}"


def is_savepoint_name(name: str) -> bool:
    """Return whether a directory's name has the form of a savepoint's name."""
    return _SAVEPOINT.fullmatch(name) is not None


def operator_mark(uid: str) -> str:
    """Return what stands for an operator in names of files.

    Two operators could have the same mark, which is unlikely. Then the files of both are kept
    longer.
    """
    return hashlib.sha256(uid.encode()).hexdigest()[:12]


def segment_path(uid: str, subtask: int, epoch: int) -> str:
    """Return a new, unique path for a changelog segment of an operator's subtask."""
    return f"{TASK_OWNED}/segment-{_writer(uid, subtask, epoch)}-{secrets.token_hex(8)}.chg"


def base_path(uid: str, subtask: int, epoch: int) -> str:
    """Return a new, unique path for a base snapshot of an operator's subtask."""
    return f"{SHARED}/base-{_writer(uid, subtask, epoch)}-{secrets.token_hex(8)}.chg"


def _writer(uid: str, subtask: int, epoch: int) -> str:
    return f"{operator_mark(uid)}-{subtask}-{epoch}"


def new_savepoint_token() -> str:
    """Return a new, unique token for the names of the files that are made for one savepoint."""
    return secrets.token_hex(8)


def canonical_path(subtask: int, epoch: int, token: str) -> str:
    """Return a new, unique path for all state of a subtask in the savepoint of that token."""
    return f"{SHARED}/canonical-{subtask}-{epoch}-{token}-{secrets.token_hex(4)}.parquet"


def is_canonical_of(path: str, token: str) -> bool:
    """Return whether a canonical file was made for the savepoint of that token."""
    match = _CANONICAL_FILE.fullmatch(path)
    return match is not None and match[1] == token


def written_path(path: str) -> str:
    """Return the final path of a temporary file; any other path stays as it is."""
    directory, slash, name = path.rpartition("/")
    match = _TEMPORARY_FILE.fullmatch(name)
    return f"{directory}{slash}{match[1]}" if match else path


def new_snapshot_id() -> str:
    """Return a new, unique id of a base snapshot."""
    return secrets.token_hex(8)


def is_snapshot_id(text: str) -> bool:
    """Return whether `text`, which comes from a file, can be the id of a base snapshot."""
    return _SNAPSHOT_ID.fullmatch(text) is not None


def snapshot_path(uid: str, subtask: int, epoch: int, snapshot_id: str) -> str:
    """Return a new, unique path for a file of the base snapshot `snapshot_id`."""
    writer = _writer(uid, subtask, epoch)
    return f"{SHARED}/base-{writer}-{snapshot_id}-{secrets.token_hex(4)}.part"


def source_log_path(source_index: int, log_name: str, sha256: str) -> str:
    """Return the path of a copy of one of Spark's source log files.

    Copies of the same file with equal content have equal paths.
    """
    return f"{SHARED}/source-{source_index}-{log_name}-{sha256[:16]}.log"


def spark_operator_path(operator_id: int, sha256: str) -> str:
    """Return the path of a copy of one of Spark's state files.

    Copies of one operator's files with equal content have equal paths.
    """
    return f"{SHARED}/native-{operator_id}-{sha256[:32]}.bin"


class StateFile(NamedTuple):
    """What the name of a task's file says.

    `operator` is the mark of the operator whose subtask wrote the file. `snapshot_id` is the id of
    the file's base snapshot, ``None`` for other files.
    """

    operator: str
    subtask: int
    epoch: int
    snapshot_id: str | None


def state_file(name: str) -> StateFile | None:
    """Return what the name of a file says, ``None`` if no task wrote it.

    The name of a temporary file, which a killed task leaves, says the same.
    """
    match = _STATE_FILE.fullmatch(name)
    if match is None or (match["kind"] == "segment" and match["snapshot"] is not None):
        return None
    return StateFile(
        match["operator"], int(match["subtask"]), int(match["epoch"]), match["snapshot"]
    )


def epoch_of(name: str) -> int | None:
    """Return the epoch in which a task wrote the file `name`, ``None`` if no task wrote it."""
    file = state_file(name)
    return None if file is None else file.epoch


def is_source_log(name: str) -> bool:
    """Return whether `name` is a copy of a source log."""
    return _SOURCE_FILE.fullmatch(name) is not None


def is_spark_operator_state(name: str) -> bool:
    """Return whether `name` is a copy of a state file of Spark's own operators."""
    return _SPARK_OPERATOR_FILE.fullmatch(name) is not None


def is_of_checkpoints_directory(directory: str, names: Collection[str]) -> bool:
    """Return whether a directory holds what the library keeps in a query's directory of that name.

    Anybody may have directories with names such as ``shared``, so their content counts.
    """
    if checkpoint_id_of(directory) is not None:
        return METADATA_NAME in names or AUTHOR_NAME in names
    if directory == HISTORY:
        return "runs" in names or any(map(_ENTRY_OF_HISTORY.fullmatch, names))
    if directory in (DRIVERS, OWNERS, STORES):
        return any(map(_NUMBERED.fullmatch, names))
    if directory in (SHARED, TASK_OWNED):
        return BUNDLED_MARK in names or any(map(_is_data_file, names))
    return False


def _is_data_file(name: str) -> bool:
    return (
        state_file(name) is not None
        or initial_file(name) is not None
        or is_source_log(name)
        or is_spark_operator_state(name)
    )


class InitialFile(NamedTuple):
    """The name of a file with the handles of initial states.

    `number` grows with each start that made them, whatever its clock said. `time_ms` is the
    processing time for which they were made.
    """

    number: int
    time_ms: int
    is_whole: bool


def initial_path(number: int, time_ms: int) -> str:
    """Return a new, unique path for the handles of initial states that were made for a time."""
    return f"{SHARED}/initial-{number}-{time_ms}-{secrets.token_hex(8)}.bin"


def initial_file(name: str) -> InitialFile | None:
    """Return what the name of a file of initial states says, ``None`` for other files."""
    match = _INITIAL_FILE.fullmatch(name)
    if match is None:
        return None
    is_whole = not name.startswith(".") and match["unfinished"] is None
    return InitialFile(int(match["number"]), int(match["time_ms"]), is_whole)


def capture_path(uid: str, subtask: int, epoch: int) -> str:
    """Return a new, unique path for what a subtask saw in an epoch."""
    return f"{CAPTURES}/epoch-{_writer(uid, subtask, epoch)}-{secrets.token_hex(8)}.capture"


def failure_path(uid: str, subtask: int, epoch: int, key: bytes) -> str:
    """Return the path for what a task saw that failed at a key: one for each key and epoch."""
    digest = hashlib.sha256(key).hexdigest()[:16]
    return f"{CAPTURES}/failure-{_writer(uid, subtask, epoch)}-{digest}.capture"


def quarantined_failure_path(uid: str, subtask: int, error: bytes) -> str:
    """Return the path for what a call saw that quarantined its key: one for each kind of error."""
    digest = hashlib.sha256(error).hexdigest()[:16]
    return f"{CAPTURES}/quarantined-{operator_mark(uid)}-{subtask}-{digest}.capture"


class CaptureName(NamedTuple):
    """What the name of a captured epoch says; `operator` is the mark of the operator."""

    operator: str
    subtask: int
    epoch: int


def capture_name(name: str) -> CaptureName | None:
    """Return what the name of a captured epoch says, ``None`` for any other name."""
    match = _CAPTURE_FILE.fullmatch(name)
    if match is None:
        return None
    return CaptureName(match["operator"], int(match["subtask"]), int(match["epoch"]))
