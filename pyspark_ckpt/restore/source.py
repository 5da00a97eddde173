"""Opens the checkpoint or savepoint that a query is restored from, and checks it."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import AbstractContextManager, closing
from typing import Any

from pyspark_ckpt.checkpoint import file_check
from pyspark_ckpt.errors import CorruptFileError, UnsafePathError
from pyspark_ckpt.formats.layout import checkpoint_id_of, checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.metadata_file import decode_metadata, read_metadata_and_digest
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.spark.log import is_offset
from pyspark_ckpt.spark.session import STATE_STORE_PROVIDER, STATE_STORE_PROVIDERS
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.reader_pins import name_subsumed

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_+-]{0,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_LINES_BEFORE_OFFSETS = 2
"""Of an entry of Spark's offset log: its version, and what holds for all sources."""

logger = library_logger(__name__)


class RestoreSource:
    """A checkpoint or savepoint to start from; read and checked, except its data files.

    `skipped` says why each newer checkpoint was passed over, newest first.
    """

    def __init__(self, path: str, *, check_files: bool = True) -> None:
        directory = open_storage(path)
        self._set(directory, *read_metadata_and_digest(directory))
        if check_files:
            with self.reading():
                file_check.check_files(self.storage, self.metadata.files())

    @classmethod
    def of_metadata(cls, path: str, data: bytes) -> RestoreSource:
        """Return a source whose metadata was read before, perhaps by another process.

        The directory need not have the metadata any more, and the data files are not checked.
        `data` may be a part of the metadata, as ``encode_metadata`` returns it.
        """
        source = cls.__new__(cls)
        metadata = decode_metadata(data, path)
        source._set(  # noqa: SLF001  # it is of this class
            open_storage(path), metadata, hashlib.sha256(data).hexdigest()
        )
        return source

    def _set(self, directory: Storage, metadata: CheckpointMetadata, sha256: str) -> None:
        self.path = directory.url
        self.metadata = metadata
        self.sha256 = sha256
        self.storage = self._root(directory)
        self.skipped: tuple[str, ...] = ()
        for operator in self.metadata.operators:
            self._check_handles(operator)

    @property
    def offsets(self) -> dict[int, str]:
        """The offset of each source, as Spark writes it, by the number of the source."""
        lines = self.metadata.offsets_entry.split("\n")[_LINES_BEFORE_OFFSETS:]
        for line in lines:
            if _CONTROL.search(line):  # Spark ends lines at more of them than this library
                raise self._not_sparks("an offset has control characters")
            if not is_offset(line):
                raise self._not_sparks(f"{line[:80]!r} is not an offset")
        numbers = self.metadata.source_ids or tuple(range(len(lines)))
        if len(numbers) != len(lines):
            raise CorruptFileError(
                f"{self.path} has {len(lines)} source offsets and names {len(numbers)} sources for "
                "them; restore from another checkpoint or savepoint"
            )
        return dict(zip(numbers, lines, strict=True))

    @property
    def spark_conf(self) -> dict[str, str]:
        """The conf that Spark keeps with the query's epochs: state store, formats, parallelism."""
        conf = self._for_all_sources().get("conf", {})
        if not isinstance(conf, dict):
            raise self._not_sparks("its conf is not a JSON object")
        return {str(key): str(value) for key, value in conf.items()}

    @property
    def plain_conf(self) -> dict[str, str]:
        """The part of :attr:`spark_conf` that may be given to Spark, because it names no class.

        Values are plain words, or names of Spark's own state stores.
        """
        return {
            key: value
            for key, value in self.spark_conf.items()
            if key.startswith("spark.sql.")
            and (
                _PLAIN_VALUE.fullmatch(value)
                or (key == STATE_STORE_PROVIDER and value in STATE_STORE_PROVIDERS)
            )
        }

    @property
    def of_query(self) -> str:
        """The id of the query whose epochs it is of, also if a user has edited it since."""
        return self.metadata.location_query_id or self.metadata.query_id

    @property
    def times_ms(self) -> dict[str, int]:
        """The watermark and the time of the epoch, by Spark's names."""
        fields = self._for_all_sources()
        times = {key: fields.get(key) for key in ("batchWatermarkMs", "batchTimestampMs")}
        for key, value in times.items():
            if type(value) is not int:
                raise self._not_sparks(f"{key} is {str(value)[:80]!r}")
        return {key: int(value) for key, value in times.items() if value is not None}

    def verify(self) -> None:
        """Read every file and check it by its digest."""
        with self.reading():
            for reference in {each.path: each for each in self.metadata.files()}.values():
                with self.storage.open_verified(reference):
                    pass

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which an error of a file says if the checkpoint was subsumed."""
        return name_subsumed(open_storage(self.path))

    def _for_all_sources(self) -> dict[str, Any]:
        """Return the fields of Spark's entry that hold for all sources."""
        try:
            fields = json.loads(self.metadata.offsets_entry.split("\n")[1])
        except (ValueError, IndexError, RecursionError) as exc:
            raise self._not_sparks(str(exc)) from exc
        if not isinstance(fields, dict):
            raise self._not_sparks("it is not a JSON object")
        return fields

    def _not_sparks(self, what: str) -> CorruptFileError:
        return CorruptFileError(
            f"{self.path} does not have Spark's offsets ({what}); restore from another "
            "checkpoint or savepoint"
        )

    def _root(self, directory: Storage) -> Storage:
        """Return the directory that the files' paths start from."""
        root = self.metadata.root
        if root == ".":
            return directory
        if root == "..":
            return directory.parent()
        raise UnsafePathError(
            f"{self.path}: the paths of its files start from {root!r}, which is neither its own "
            "directory nor the one above; do not use it"
        )

    def _check_handles(self, operator: OperatorMetadata) -> None:
        subtasks = [handle.subtask for handle in operator.handles]
        if (
            len(set(subtasks)) != len(subtasks)
            or any(not 0 <= subtask < operator.parallelism for subtask in subtasks)
            or any(handle.uid != operator.uid for handle in operator.handles)
        ):
            raise CorruptFileError(
                f"{self.path}: operator {operator.uid!r} has handles of other subtasks or "
                "operators; restore from another checkpoint or savepoint"
            )


def open_source(path: str, *, falls_back: bool) -> RestoreSource:
    """Open what a query is to be restored from.

    With `falls_back`, every file is read and checked, and a corrupt ``chk-N`` is replaced by the
    newest whole one before it, which has other source offsets.
    """
    try:
        return _open_source(path, verify=falls_back)
    except CorruptFileError as exc:
        earlier = _earlier_checkpoints(path)
        if not earlier:
            raise
        if not falls_back:
            raise CorruptFileError(
                f"{exc} (the checkpoint before it is {earlier[0]}; set "
                "spark.ckpt.execution.state-recovery.fallback=true to restore the newest whole one)"
            ) from exc
        source = _first_whole(earlier, [str(exc)])
    logger.warning(
        "fallback: restoring from %s, epoch %s; %s newer corrupt: %s",
        source.path,
        source.metadata.epoch,
        len(source.skipped),
        "; ".join(source.skipped),
    )
    return source


def _first_whole(paths: list[str], reasons: list[str]) -> RestoreSource:
    """Open the first whole checkpoint of `paths`; `reasons` say why others were passed over."""
    if not paths:
        raise CorruptFileError(
            f"no whole checkpoint is left to fall back to: {'; '.join(reasons)}; restore from a "
            "savepoint"
        )
    try:
        source = _open_source(paths[0], verify=True)
    except CorruptFileError as exc:
        return _first_whole(paths[1:], [*reasons, str(exc)])
    source.skipped = tuple(reasons)
    return source


def _open_source(path: str, *, verify: bool) -> RestoreSource:
    source = RestoreSource(path)
    if verify:
        source.verify()
    return source


def _earlier_checkpoints(path: str) -> list[str]:
    """Return the complete checkpoints before a ``chk-N`` in its directory, newest first."""
    directory = open_storage(path)
    number = checkpoint_id_of(name_of(directory))
    if number is None:
        return []
    checkpoints = directory.parent()
    with closing(find_store(checkpoints)) as store:
        earlier = [each for each in store.ids() if each < number]
    return [checkpoints.url_of(checkpoint_name(each)) for each in reversed(earlier)]


def name_of(directory: Storage) -> str:
    """Return the name of a storage's root directory."""
    return directory.url.rstrip("/").rpartition("/")[2]
