"""A place with checkpoints or savepoints, and what can be done there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.api.writer import CheckpointedStreamWriter, plan_restore
from pyspark_ckpt.editing.erasing import Erasure, erase_keys
from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY
from pyspark_ckpt.history.captures import Capture
from pyspark_ckpt.history.contents import describe, list_stored
from pyspark_ckpt.history.frames import History, history, subtask_history
from pyspark_ckpt.history.lineage import lineage
from pyspark_ckpt.history.places import find_checkpoints_directory
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.history.verification import Verification, verify
from pyspark_ckpt.importing.import_checkpoint import ImportedOperator, import_checkpoint
from pyspark_ckpt.importing.state_rows import Mapper
from pyspark_ckpt.restarting.rollback import Rollback, rollback
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.restore.renaming import rename_uid
from pyspark_ckpt.savepoint.dispose import Disposal, dispose_savepoint
from pyspark_ckpt.snapshot.difference import StateDifference, diff_state
from pyspark_ckpt.snapshot.snapshot import Snapshot, open_state
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import Storage, open_storage


def location(path: str | os.PathLike[str] | Location) -> Location:
    """Return a place with checkpoints or savepoints. Nothing is read.

    Parameters
    ----------
    path : str or path
        A path or URL: a query's ``checkpointLocation`` or checkpoints directory, a ``chk-...`` or
        ``savepoint-...`` directory, or a directory of savepoints. Each method says which it takes.

    Returns
    -------
    Location
        What can be done there.

    Examples
    --------
    >>> ckpt.location(savepoint.path).show()["epoch"] == savepoint.epoch
    True
    """
    return path if isinstance(path, Location) else Location(os.fspath(path))


class Location:
    """A place with checkpoints or savepoints; :func:`location` returns it.

    A method and a command of ``pyspark-ckpt`` that do the same have the same name. Methods run in
    the calling process and need no Spark, if they do not say otherwise.

    Parameters
    ----------
    path : str
        As of :func:`location`.

    Examples
    --------
    >>> ckpt.location(f"{directory}/query").path == f"{directory}/query"
    True
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"location({self.path!r})"

    def list(self) -> pd.DataFrame:
        """Return the checkpoints of a query, or the savepoints in and below a directory.

        Returns
        -------
        pandas.DataFrame
            Oldest first: kind, status (``completed``, ``corrupt``, and of a savepoint ``begun``,
            which is being taken, or whose driver ended first), checkpoint_id, epoch, format,
            triggered_at (UTC), duration_ms, size_bytes, files, path.

        Raises
        ------
        CheckpointNotFoundError, UnsafePathError
            If there are none at the path, there are checkpoints of several queries, or the path is
            not safe.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or a library is not installed: of
            the storage, or of ZooKeeper.
        OSError
            If the storage or ZooKeeper cannot be reached.

        Examples
        --------
        >>> ckpt.location(f"{directory}/savepoints").list()["path"].tolist() == [savepoint.path]
        True
        """
        return list_stored(self.path)

    def show(self) -> dict[str, Any]:
        """Return what a checkpoint or savepoint holds, a ``chk-...`` or ``savepoint-...`` path.

        Returns
        -------
        dict
            Its kind, checkpoint_id, epoch, query_id, query_name, watermark_ms, completed_at_ms,
            size_bytes, files, spark_version, library_version; operators, each with its uid, states,
            parallelism and backend; spark_operators, by name; and the format of a savepoint.

        Raises
        ------
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the path holds no checkpoint or savepoint, or it is damaged.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or its library is not installed.

        Examples
        --------
        >>> [operator["uid"] for operator in ckpt.location(savepoint.path).show()["operators"]]
        ['count']
        """
        return describe(self.path)

    def history(self) -> History:
        """Return the history of a query's checkpoints and savepoints.

        Returns
        -------
        History
            A ``pandas.DataFrame`` whose ``plot()`` draws the checkpoints; this needs the extra
            ``plot``. Oldest first, by the ids of checkpoints, because the wall clock may jump:
            kind, status (``completed``, ``corrupt``, ``aborted``, ``begun``), checkpoint_id, epoch,
            triggered_at (UTC), duration_ms, size_bytes, new_bytes (not in the retained checkpoint
            before it), files, phases_ms (of gathering: handles, sources, verification), path,
            reason, and of restarts in place (kind ``restart``) parallelism_before, parallelism and
            pause_ms. quarantined_keys and quarantined_rows are of checkpoints of the last hour,
            once the run has recorded them (within half a minute), if a key was ever quarantined.
            :meth:`subtask_history` has each subtask's part. Checkpoints that retention has removed
            are left out, and with a warning in the log those that may not be read. Savepoints and
            failures are included, up to a thousand.

        Raises
        ------
        CheckpointNotFoundError, UnsafePathError
            If there are no checkpoints at the path, there are those of several queries, or the path
            is not safe.
        CorruptFileError
            If the note that says where the checkpoints are stored was changed.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or a library is not installed: of the
            storage, or of ZooKeeper.
        OSError
            If the storage or ZooKeeper cannot be reached.

        Examples
        --------
        >>> history = ckpt.location(f"{directory}/query").history()
        >>> set(history["kind"]) == {"checkpoint", "savepoint"}
        True
        """
        return history(self.path)

    def subtask_history(self) -> pd.DataFrame:
        """Return the part of each subtask in the retained checkpoints of a query.

        Returns
        -------
        pandas.DataFrame
            Oldest first. Columns: checkpoint_id, epoch, uid, subtask; subtask_epoch, the last epoch
            in which the subtask was called; size_bytes, new_bytes (not in the retained checkpoint
            before it), files, base_bytes and segments of its state; and counters of that last
            epoch, such as keys, writes and open_ms, which docs/processors.md lists.

        Raises
        ------
        CheckpointNotFoundError, UnsafePathError
            If there are no checkpoints at the path, there are those of several queries, or the path
            is not safe.
        CorruptFileError
            If the note that says where the checkpoints are stored was changed.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or a library is not installed: of the
            storage, or of ZooKeeper.
        OSError
            If the storage or ZooKeeper cannot be reached.

        Examples
        --------
        >>> set(ckpt.location(f"{directory}/query").subtask_history()["uid"])
        {'count'}
        """
        return subtask_history(self.path)

    def lineage(self) -> pd.DataFrame:
        """Return a checkpoint or savepoint and its ancestors, or the tree of all below a directory.

        For one checkpoint or savepoint, the result starts with it, and its parent, grandparent and
        so on follow. A parent is looked for at the path that it had when the child's query was
        restored from it. A parent that was moved, deleted or damaged is the last row, with the
        child's record of it. For a directory, the result has all checkpoints and savepoints below
        it as a tree: each is followed by the queries that were restored from it, even if it was
        moved.

        Returns
        -------
        pandas.DataFrame
            The columns kind, path, checkpoint_id, query_id, query_name, epoch, completed_at (UTC),
            operators (a dictionary by uid: processor, code_sha256, schema_sha256, parallelism,
            max_parallelism, backend, restored), found, parent, generation. `restored` says whether
            the operator's state came from the parent. `parent` is the path that the query was
            restored from. `generation` is the number of restores since the oldest known ancestor.

        Raises
        ------
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the path holds no checkpoint or savepoint, or it is damaged or not safe.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or its library is not installed.

        Examples
        --------
        >>> ckpt.location(savepoint.path).lineage()["generation"].tolist()
        [0]
        """
        return lineage(self.path)

    def verify(self) -> Verification:
        """Check every file of a checkpoint or savepoint by size and SHA-256.

        No file is changed.

        Returns
        -------
        Verification
            What was checked.

        Raises
        ------
        CheckpointNotFoundError, UnsafePathError
            If the path holds no checkpoint or savepoint, it was subsumed during the call, or a path
            in it is not safe.
        CorruptFileError
            If files are missing or changed. The message names them.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or its library is not installed.

        Examples
        --------
        >>> ckpt.location(savepoint.path).verify().kind
        'savepoint'
        """
        return verify(self.path)

    def state(self) -> Snapshot:
        """Open a savepoint or checkpoint to read its states as tables.

        It needs no class of the query, and only reads.

        Returns
        -------
        Snapshot
            What it has, and its states; use it in a ``with`` statement, or close it.

        Raises
        ------
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the path holds no checkpoint or savepoint, or it is damaged.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or its library is not installed.
        OSError
            If the storage cannot be reached.

        Examples
        --------
        >>> with ckpt.location(savepoint.path).state() as snapshot:
        ...     snapshot.state("count", "count").get("ada")
        {'n': 2}
        """
        return open_state(self.path)

    def diff(self, other: str | Location) -> StateDifference:
        """Compare the states of two savepoints or checkpoints.

        They may be of one query, or of a query and its fork, at any parallelism. State that both
        share is not read: of two checkpoints of one query mostly the changes between them are read.

        Parameters
        ----------
        other : str or Location
            The newer one; as for :meth:`state`.

        Returns
        -------
        StateDifference
            How many entries of each state were added, removed and changed, and which.

        Raises
        ------
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If a path holds no checkpoint or savepoint, or it is damaged.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of a path, or its library is not installed.
        IncompatibleStateError
            If the key columns of an operator, or the forms of a state, have nothing in common.
        OSError
            If a storage cannot be reached.

        Examples
        --------
        >>> difference = ckpt.location(savepoint.path).diff(savepoint.path)
        >>> difference.is_equal
        True
        """
        return diff_state(self.path, location(other).path)

    def plan(self, query: DataFrame | CheckpointedStreamWriter, **arguments: Any) -> RestorePlan:
        """Return what a restore would do with every operator and state; starts nothing.

        Call it on the driver. ``start`` makes the same plan, and raises an error if the plan has
        one.

        Parameters
        ----------
        query : DataFrame or CheckpointedStreamWriter
            The query as a DataFrame, or its writer. The plan follows the writer's options, and what
            its ``restoreFrom`` was given, where no argument says otherwise.
        **arguments : object
            Further arguments of :meth:`CheckpointedStreamWriter.restoreFrom`.

        Returns
        -------
        RestorePlan
            Prints as a table. `states` has a row for each operator and each of its states.

        Raises
        ------
        ConfigurationError
            If a setting is unknown or not allowed, or `claimMode` is not.
        PlanError, NotBuiltYetError
            If the query has no operator of this library, two of its operators have the same uid, or
            it has operators in an order that is not supported.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the path holds no checkpoint or savepoint, or it is damaged.

        Examples
        --------
        >>> plan = ckpt.location(savepoint.path).plan(counts)
        >>> [row.outcome for row in plan.states if row.state == "count"]
        ['restored']
        """
        return plan_restore(self.path, query, **arguments)

    def rename_uid(self, uids: Mapping[str, str], directory: str) -> Savepoint:
        """Write a savepoint in which operators of a checkpoint or savepoint have other uids.

        It does what Flink's ``SavepointWriter.changeOperatorIdentifier`` does. It only reads the
        path.

        Parameters
        ----------
        uids : Mapping of str to str
            New uids by the old ones.
        directory : str
            The parent of the new ``savepoint-...`` directory.

        Returns
        -------
        Savepoint
            Self-contained and durable.

        Raises
        ------
        RestoreError
            If an old uid is not stored, a new uid is empty, or two operators would have the same
            uid.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the path holds no checkpoint or savepoint, or it is damaged.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of a path, or its library is not installed.
        OSError
            If the new savepoint cannot be written; nothing of it remains.

        Examples
        --------
        >>> stored = ckpt.location(savepoint.path)
        >>> renamed = stored.rename_uid({"count": "visits"}, f"{directory}/renamed")
        >>> renamed.epoch == savepoint.epoch
        True
        """
        return rename_uid(self.path, uids, directory)

    def rollback(
        self,
        to: str,
        checkpoints_directory: str | None = None,
        *,
        force: bool = False,
        allow_missing_input: bool = False,
        spark: SparkSession | None = None,
    ) -> Rollback:
        """Put the location of a stopped query back to one of its retained checkpoints.

        Call it on the driver. The query that is started there next continues from the checkpoint:
        its state, its source offsets, its watermark. What was in the location is moved to a
        directory inside it and stays until you delete it. If a rollback was interrupted, the call
        finishes it first.

        The call needs no file of Spark's in the location, so it also mends one in which such files
        are lost or damaged; a start of the query names the checkpoint then.

        Epoch numbers continue from the checkpoint. Spark's file sink skips the epochs that it has
        seen. So a query that had later epochs needs a new output path; a start with the old path is
        refused. In a ``foreachBatch`` function, :func:`pyspark_ckpt.current_epoch` returns which
        epochs are void.

        Parameters
        ----------
        to : str
            ``chk-N``, or the name of a ``_before_rollback-...`` directory in the location.
        checkpoints_directory : str, optional
            ``spark.ckpt.execution.checkpointing.dir`` of the query, if its directory was moved. By
            default, the directory that the location records.
        force : bool
            Roll back although nothing says that the query's run has ended, or a Spark Connect
            server may continue it. Only if you know that its driver is gone, and that no server
            runs it: a query that runs on would mix its epochs with the content that comes in.
            Otherwise, if a run has no end in its records, the call waits two minutes for a sign of
            life.
        allow_missing_input : bool
            Whether to leave out the rows of input files that the void epochs have read and that are
            gone, instead of refusing.
        spark : SparkSession, optional
            The session that reads and writes the location; by default the active one, or PySpark's
            default one, as in a thread that has no active session.

        Returns
        -------
        Rollback
            Durable.

        Raises
        ------
        RestoreError
            If there is no running Spark session. Also if the query runs, drains or never ran, or
            `to` is not its checkpoint, or the location is a copy of another one that owns the
            checkpoints, or nothing of the query is in the checkpoints directory, or the location
            records another one. Also if input that the void epochs have read is gone, or cannot be
            looked for. Nothing was changed.
        FencedError
            If another driver starts the query during the call, or rolls it back.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the location, or of the checkpoints directory.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If there is no good checkpoint of that name; nothing was changed.

        Examples
        --------
        >>> query.stop()
        >>> back = ckpt.location(f"{directory}/query").rollback(f"chk-{checkpoint.checkpoint_id}")
        >>> query = writer.start()
        >>> checkpoint = query.triggerCheckpoint()
        """
        return rollback(
            self.path,
            to,
            checkpoints_directory,
            force=force,
            allow_missing_input=allow_missing_input,
            spark=spark,
        )

    def dispose(self) -> Disposal:
        """Delete a savepoint: the files that its ``_metadata`` names, then the empty directories.

        Files of others in its directory stay. ``_metadata`` is deleted last. So an interrupted call
        can be repeated, and no restore takes the rest for a savepoint, because files are missing.
        Of a savepoint that is not complete, the files that its ``_in_progress`` names are deleted;
        a driver that is still taking it reports a failure.

        Returns
        -------
        Disposal
            What was deleted.

        Raises
        ------
        CheckpointNotFoundError
            If there is no savepoint: nothing, or a checkpoint, which its query's retention owns.
        CorruptFileError, UnsafePathError
            If its ``_metadata`` cannot be trusted. Nothing was deleted.
        CheckpointError
            If somebody reads it with :meth:`state`. Nothing was deleted.
        ConfigurationError, NotBuiltYetError
            If there is no storage for the scheme of the path, or its library is not installed.
        OSError
            If a file cannot be deleted; call it again.

        Examples
        --------
        >>> unwanted = ckpt.location(savepoint.path).rename_uid({}, f"{directory}/unwanted")
        >>> ckpt.location(unwanted.path).dispose().was_complete
        True
        """
        return dispose_savepoint(self.path)

    def capture(self, epochs: int | Iterable[int], uid: str | None = None) -> Capture:
        """Have chosen epochs captured: what the processors of a query see, and make of it.

        It takes effect when the query is started at the location, also for the first time or again.
        For a query that runs in this process, call its method ``capture`` instead. Called once more
        for the same epochs, it returns the captures that were made since then.

        Parameters
        ----------
        epochs : int or iterable of int
            The numbers of the epochs, such as ``range(3, 6)``.
        uid : str, optional
            The operator; by default all operators of the query.

        Returns
        -------
        Capture
            Has :meth:`Capture.save`, which makes one file of the captures.

        Raises
        ------
        PlanError
            If a number is not one of an epoch, or no number is given.
        CheckpointNotFoundError
            If a directory of checkpoints has those of several queries.
        CorruptFileError
            If an earlier request is damaged.
        OSError
            If the storage cannot be reached.

        Examples
        --------
        >>> captured = ckpt.location(f"{directory}/location").capture(range(3))
        >>> captured.epochs
        [0, 1, 2]
        """
        root = open_storage(self.path)
        captured = Capture(_checkpoints(root), SparkLog(root), epochs, uid)
        captured.request()
        return captured

    def erase_keys(
        self,
        keys: Mapping[str, DataFrame | Sequence[DataFrame]],
        *,
        spark: SparkSession | None = None,
    ) -> Sequence[Erasure]:
        """Erase keys from every savepoint in a directory.

        Each savepoint that has one of the keys is replaced by a new one without them. So is one in
        the ``NATIVE`` format, whose files may still have a key that the processor has deleted. The
        new ones are written first and read back: no entry may have an erased key. Then the old ones
        are disposed of. If the call is interrupted, the old ones may be there with the keys: call
        it again. If that names a savepoint as incomplete, damaged or being deleted, finish its end
        with :meth:`dispose` first.

        Parameters
        ----------
        keys : Mapping of str to DataFrame or sequence of DataFrame
            For each operator's uid the key columns of the keys. If savepoints have other key
            columns after a `rekey`, a list with a frame for each kind of them: a frame has the keys
            of the savepoints whose key columns have its names, and, if some have its types too, of
            these only.
        spark : SparkSession, optional
            The session whose executors do the work; by default that of a frame in `keys`, the
            active one, or PySpark's default one.

        Returns
        -------
        sequence of Erasure
            One for each savepoint in the directory, replaced or not. If none has `mentions`,
            `not_scanned`, `too_short` or `left`, nothing is left of the keys that this library can
            find.

        Raises
        ------
        PlanError
            If the directory has checkpoints of a query, which only the query's retention deletes, a
            savepoint inside a savepoint, a link, or too many levels, no savepoint there has one of
            the operators or the key columns of a frame, a savepoint has key columns that no frame
            has, or there is no running Spark session.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If there is no savepoint, or one is incomplete or damaged. It may hold the keys, so
            nothing was deleted.
        RestoreError
            If an erased key was read back from a new savepoint. Nothing was deleted.

        Examples
        --------
        >>> kept = ckpt.edit_state(savepoint.path).save(f"{directory}/private")
        >>> person = spark.createDataFrame([("bob",)], "user string")
        >>> [erasure] = ckpt.location(f"{directory}/private").erase_keys({"count": person})
        >>> erasure.mentions, erasure.replaced == kept.path
        (0, True)
        >>> erasure.too_short  # "bob" may be in a longer text
        1
        """
        return erase_keys(self.path, keys, spark=spark)

    def import_checkpoint(
        self,
        directory: str | None = None,
        *,
        processor: StatefulProcessor | None = None,
        uid: str | None = None,
        operators: Mapping[int, ImportedOperator] | None = None,
        mapper: Mapper | None = None,
        time_mode: str | None = None,
        query: DataFrame | None = None,
        discard_uncommitted: bool = False,
        spark: SparkSession | None = None,
    ) -> Savepoint:
        """Make a savepoint of a stopped query of Spark's own stateful operators.

        Call it on the driver. Restore the same program over :func:`key_by` from the savepoint: it
        has the state, the timers, the watermark and the source offsets, and reads no input again.
        `location` is only read.

        An operator may be ``transformWithState``, ``transformWithStateInPandas`` or
        ``applyInPandasWithState``, with any state store and encoding that Spark can read. For a
        query with one operator give `processor` and `uid`, for a query with several give
        `operators`.

        Parameters
        ----------
        directory : str, optional
            The parent of the new ``savepoint-...`` directory; by default
            ``spark.ckpt.execution.checkpointing.savepoint-dir``.
        processor : StatefulProcessor, optional
            The processor that the query of Spark ran. For ``applyInPandasWithState``, the processor
            that replaces its function.
        uid : str, optional
            The operator's uid in the restored query.
        operators : Mapping of int to ImportedOperator, optional
            Each operator of the query by Spark's id of it, which the errors name. The format
            ``state-metadata`` of Spark also shows the ids.
        mapper : callable, optional
            Only for ``applyInPandasWithState``, which requires it: gets key, state and timeout in
            milliseconds (``None`` if there is none), and returns the key's :class:`KeyState`. It
            runs on executors, once per key and state, and must have no effects.
        time_mode : str, optional
            Only for ``applyInPandasWithState``: the `timeMode` of the processor, by default
            ``None``, which has no timers. A mapper that then returns some is refused.
        query : DataFrame, optional
            The query that will be restored. Required only if it reads one source at several places.
            If it is given, it is also checked that the location has the state of as many operators.
        discard_uncommitted : bool
            Whether an unfinished epoch of the query of Spark may be left out. Its rows are read
            again.
        spark : SparkSession, optional
            The session whose executors do the work; by default that of `query`, the active one, or
            PySpark's default one.

        Returns
        -------
        Savepoint
            Self-contained and durable.

        Raises
        ------
        PlanError
            If an argument or the directory is missing, or does not fit the operator of Spark. Also
            if there is no running Spark session.
        ConfigurationError
            If the directory is in the memory of one process, or cannot create files exclusively.
            Also if Spark's reader of state does not find `location`, because of a space or another
            sign in its path.
        CheckpointNotFoundError
            If no epoch of a query was committed at `location`.
        RestoreError
            If the query runs in this application (over Spark Connect: in a session that this
            process has in use), was stopped in the middle of an epoch, or is one of this library.
            Nobody can see that another application or client runs it.
        CorruptFileError
            If state of the query is missing or damaged. Nothing remains of the savepoint.
        CheckpointAbortedError
            If a Spark job failed for another reason. Nothing remains of the savepoint.
        IncompatibleStateError
            If the processor declares other states than Spark has.
        NotBuiltYetError
            If the query has a stateful operator that cannot be imported.
        ProcessorError
            If ``init`` or ``close`` raises an error; they are called once on the driver.

        Examples
        --------
        >>> session = spark.newSession()
        >>> rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        >>> session.conf.set("spark.sql.streaming.stateStore.providerClass", rocksdb)
        >>> native = session.readStream.schema("user string").parquet(f"{directory}/events")
        >>> native = native.groupBy("user").transformWithState(
        ...     Count(), "user string, n long", "Update", "None"
        ... )
        >>> running = (
        ...     native.writeStream.format("noop")
        ...     .outputMode("update")
        ...     .trigger(availableNow=True)
        ...     .start(checkpointLocation=f"{directory}/native")
        ... )
        >>> running.awaitTermination(60)
        True
        >>> imported = ckpt.location(f"{directory}/native").import_checkpoint(
        ...     f"{directory}/imported", processor=Count(), uid="count"
        ... )
        >>> print(ckpt.location(imported.path).plan(counts))
        restore from ..., epoch 0: can start
        ...
        """
        return import_checkpoint(
            self.path,
            directory,
            processor=processor,
            uid=uid,
            operators=operators,
            mapper=mapper,
            time_mode=time_mode,
            query=query,
            discard_uncommitted=discard_uncommitted,
            spark=spark,
        )


def _checkpoints(root: Storage) -> Storage:
    """Return the checkpoints of a location, also where its first start will have them."""
    try:
        return find_checkpoints_directory(root.url)
    except CheckpointNotFoundError:
        if any(not name.startswith(("_", ".")) for name in root.list()):
            raise
        return root.child(CHECKPOINTS_DIRECTORY)
