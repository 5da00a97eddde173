"""The lines of safety that :mod:`tools.mutate` breaks, and the test that must fail for each."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """A line of safety: what it is, where, its change, and the test that must fail."""

    name: str
    file: str
    line: str
    changed: str
    test: str


_LOCAL = "tests/unit/storage/test_local.py"
_NEWER = "tests/unit/formats/test_newer_formats.py"
_HOSTILE = "tests/unit/restore/test_hostile_savepoint.py"
_OTHERS = "tests/query/restoring/test_restart_among_others.py"

MUTATIONS = (
    Mutation(
        "fsync of a file",
        "pyspark_ckpt/storage/local.py",
        "                os.fsync(file.fileno())\n",
        "",
        f"{_LOCAL}::test_a_file_is_durable_before_it_has_its_name_and_the_name_when_write_returns",
    ),
    Mutation(
        "fsync of a file's name",
        "pyspark_ckpt/storage/local.py",
        "        _sync_directory(path.parent)\n        return digested",
        "        return digested",
        f"{_LOCAL}::test_a_file_is_durable_before_it_has_its_name_and_the_name_when_write_returns",
    ),
    Mutation(
        "fsync of a directory that another process made",
        "pyspark_ckpt/storage/local.py",
        "    return (str(directory), status.st_ino) in _durable_directories",
        "    return True",
        f"{_LOCAL}::test_a_directory_of_a_killed_process_is_made_durable",
    ),
    Mutation(
        "fsync after a deletion",
        "pyspark_ckpt/storage/local.py",
        "            if directory.is_dir():\n                _sync_directory(directory)",
        "            pass",
        f"{_LOCAL}::test_a_deletion_is_durable_when_delete_returns",
    ),
    Mutation(
        "exclusive create, local",
        "pyspark_ckpt/storage/local.py",
        "= give_name,",
        "= Path.replace,",
        "tests/unit/storage/test_storages.py -k TestLocalStorage",
    ),
    Mutation(
        "exclusive create, S3",
        "pyspark_ckpt/storage/servers/s3.py",
        'Body=body, IfNoneMatch="*", Metadata',
        "Body=body, Metadata",
        "tests/unit/storage/test_storages.py -k S3",
    ),
    Mutation(
        "digest of a file that is read",
        "pyspark_ckpt/storage/local.py",
        "            _checked(path, reference)(sha256_of(file))\n",
        "",
        "tests/unit/storage/test_storages.py -k TestLocalStorage",
    ),
    Mutation(
        "digest of _metadata",
        "pyspark_ckpt/formats/metadata_file.py",
        "hashlib.sha256(body).digest() != digest",
        "False",
        "tests/unit/formats/test_metadata_file.py",
    ),
    Mutation(
        "fence of a driver",
        "pyspark_ckpt/stores/directory.py",
        "if self._terms.has(self._term + 1):",
        "if False:",
        "tests/unit/stores",
    ),
    Mutation(
        "names that a killed driver left",
        "pyspark_ckpt/stores/directory.py",
        "            self._storage.make_durable(checkpoint_name(number))",
        "            pass",
        "tests/unit/stores/test_directory.py",
    ),
    Mutation(
        "author of a checkpoint's id",
        "pyspark_ckpt/stores/directory.py",
        "        self._reserved.discard(checkpoint_id)\n        #",
        "        self._reserved.discard(checkpoint_id)\n        return\n        #",
        "tests/unit/stores",
    ),
    Mutation(
        "lineage of the local copy",
        "pyspark_ckpt/operator/durable/local_copy.py",
        "    return version if version in lineage else None",
        "    return lineage[-1]",
        "tests/unit/operator/durable/test_local_copy.py",
    ),
    Mutation(
        "hold of the cleaner",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "may_clean = self._is_cleaning = self._holds == 0",
        "may_clean = self._is_cleaning = True",
        "tests/unit/checkpoint/test_cleaning_hold.py",
    ),
    Mutation(
        "pins of readers",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "return pinned_files(self._storage, now) if found else set()",
        "return set()",
        "tests/query/checkpoints/test_readers.py",
    ),
    Mutation(
        "files of pending base snapshots",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "        file.snapshot_id not in pending\n        and ",
        "        ",
        "tests/unit/checkpoint/test_cleaner.py",
    ),
    Mutation(
        "files that must exist before a checkpoint is published",
        "pyspark_ckpt/checkpoint/contents.py",
        "    check(query.storage, contents.files())\n",
        "",
        "tests/unit/checkpoint/test_contents.py",
    ),
    Mutation(
        "files of a checkpoint that cannot be read",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "                    metadata,\n                )\n                return\n",
        "                    metadata,\n                )\n                continue\n",
        "tests/unit/checkpoint/test_cleaner.py",
    ),
    Mutation(
        "marker of a savepoint that is not complete",
        "pyspark_ckpt/savepoint/savepoint.py",
        "        if not target.exists(IN_PROGRESS_NAME):  # the files",
        "        if False:  # the files",
        "tests/unit/savepoint",
    ),
    Mutation(
        "a complete savepoint after which something failed",
        "pyspark_ckpt/savepoint/savepoint.py",
        "            if self._is_published():",
        "            if False:",
        "tests/unit/savepoint/test_savepoint.py",
    ),
    Mutation(
        "newer formats of a handle",
        "pyspark_ckpt/formats/handle.py",
        "if header.format_version > HANDLE_FORMAT_VERSION:",
        "if False:",
        "tests/unit/formats/test_handle.py",
    ),
    Mutation(
        "newer formats of _metadata",
        "pyspark_ckpt/formats/metadata_file.py",
        "    if version > METADATA_FORMAT_VERSION:",
        "    if False:",
        _NEWER,
    ),
    Mutation(
        "newer formats of change files",
        "pyspark_ckpt/formats/change_file.py",
        "MAGIC < magic <= MAGIC",
        "MAGIC > magic <= MAGIC",
        _NEWER,
    ),
    Mutation(
        "newer formats of canonical files",
        "pyspark_ckpt/formats/canonical_file.py",
        "    if version is not None and _is_newer(version):",
        "    if False:",
        _NEWER,
    ),
    Mutation(
        "newer formats of captures",
        "pyspark_ckpt/operator/capture/capture_file.py",
        "        if version > CAPTURE_FORMAT_VERSION:",
        "        if False:",
        "tests/unit/testing/test_replay.py -k newer",
    ),
    Mutation(
        "digest of a captured section",
        "pyspark_ckpt/operator/capture/capture_file.py",
        "        if hashlib.sha256(data).hexdigest() != section.sha256:",
        "        if False:",
        "tests/unit/testing/test_replay.py",
    ),
    Mutation(
        "the lease before a write",
        "pyspark_ckpt/storage/fenced.py",
        """        self._lease.check()
        return self._inner.write(relative, chunks)""",
        "        return self._inner.write(relative, chunks)",
        "tests/unit/storage/test_fenced.py",
    ),
    Mutation(
        "a number that another driver has taken",
        "pyspark_ckpt/storage/claims.py",
        """        except FileExistsError:
            return False""",
        """        except FileExistsError:
            return True""",
        "tests/unit/stores tests/unit/restore/location",
    ),
    Mutation(
        "look for a driver that has taken a seeding over",
        "pyspark_ckpt/restore/location/seedings.py",
        "        if self._seedings.has(self._number + 1):",
        "        if False:",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "end of a seeding that another driver has taken over",
        "pyspark_ckpt/restore/location/seedings.py",
        """        if not self._seedings.take(self._number + 1, _ENDED):
            raise _taken_over(self._location)""",
        "        self._seedings.take(self._number + 1, _ENDED)",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "end of a seeding that a power loss may take",
        "pyspark_ckpt/restore/location/seedings.py",
        "    location.make_durable(SEEDINGS)",
        "    pass",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "epochs that began during a seeding",
        "pyspark_ckpt/restore/location/seedings.py",
        "    try:\n        _check_fresh(location)",
        "    try:\n        pass",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "types of schemas that PySpark would import",
        "pyspark_ckpt/formats/metadata_check.py",
        "    if has_user_type:",
        "    if False:",
        _HOSTILE,
    ),
    Mutation(
        "types of schemas that Spark would load",
        "pyspark_ckpt/restore/spark_files.py",
        "    if _USER_DEFINED.search(content) or _ESCAPE.search(content):",
        "    if False:",
        _HOSTILE,
    ),
    Mutation(
        "names in Spark's archives",
        "pyspark_ckpt/restore/spark_files.py",
        "    if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value):",
        "    if False:",
        _HOSTILE,
    ),
    Mutation(
        "most bytes of an archive of Spark's",
        "pyspark_ckpt/restore/spark_files.py",
        "            if sum(entry.file_size for entry in entries) > MAX_CHECKED_BYTES:",
        "            if False:",
        _HOSTILE,
    ),
    Mutation(
        "most files and objects of _metadata",
        "pyspark_ckpt/formats/metadata_check.py",
        "        if found > most:",
        "        if False:",
        _HOSTILE,
    ),
    Mutation(
        "claim of a swap",
        "pyspark_ckpt/restore/location/swap.py",
        "        if self._claims.has(self._number + 1) or begun_swap(self._location) "
        "!= self._begun:",
        "        if False:",
        "tests/unit/restore/location/test_swap.py",
    ),
    Mutation(
        "new content that was deleted before it was moved in",
        "pyspark_ckpt/restore/location/swap.py",
        "    if missing:",
        "    if False:",
        "tests/unit/restore/location/test_swap.py",
    ),
    Mutation(
        "proof of a candidate before its promotion",
        "pyspark_ckpt/shadowing/shadow.py",
        "        if not report.is_equal:",
        "        if False:",
        "tests/query/restoring/test_shadow.py::test_a_planted_difference_is_named",
    ),
    Mutation(
        "one stop with a savepoint at a time",
        "pyspark_ckpt/query/stopping/run_state.py",
        "                self._changed.wait_for(lambda: self._stopper is not Stopper.SAVEPOINT)",
        "                pass",
        "tests/unit/query/stopping/test_run_state.py",
    ),
    Mutation(
        "no restart of a query that somebody stopped",
        "pyspark_ckpt/query/stopping/run_state.py",
        "        return is_of_restart and self._is_wanted",
        "        return True",
        f"{_OTHERS} -k stays_stopped",
    ),
    Mutation(
        "timers of quarantined keys",
        "pyspark_ckpt/operator/state/timers.py",
        "        return next(found, QUARANTINED_TIMERS_MS)",
        "        return next(found, None)",
        "tests/query/state/test_quarantine.py::test_timers_of_quarantined_keys_keep_their_clock",
    ),
    Mutation(
        "marks of a combined state that another program wrote",
        "pyspark_ckpt/operator/schema/evolution.py",
        "place.get(field.name, added + 1 if field.name in marks else added)",
        "place.get(field.name, added)",
        "tests/unit/operator/schema/test_evolution.py",
    ),
    Mutation(
        "the number of partitions that Spark found",
        "pyspark_ckpt/spark/state_reader.py",
        "if partitions is not None and found != partitions:",
        "if partitions is not None and found > partitions:",
        "tests/query/checkpoints/test_missing_partitions.py",
    ),
    Mutation(
        "the check of a block of Spark's changes",
        "pyspark_ckpt/spark/state_changes.py",
        " or xxhash.xxh32_intdigest(block, _SEED) & _CHECK_BITS != check:",
        ":",
        "tests/query/checkpoints/test_state_rows.py -k read_or_refused",
    ),
    Mutation(
        "state of no key, which a divided subtask would lose",
        "pyspark_ckpt/operator/run/barrier.py",
        "last.key >= OPERATOR_STATE or handle.has_state_of_no_key",
        "last.key >= OPERATOR_STATE",
        "tests/unit/operator/run/test_barrier.py",
    ),
    Mutation(
        "the names of the partitions",
        "pyspark_ckpt/checkpoint/handles.py",
        "    if missing:\n        what =",
        "    if False:\n        what =",
        "tests/query/checkpoints/test_missing_partitions.py",
    ),
    Mutation(
        "a start at a location of which another one has the checkpoints",
        "pyspark_ckpt/restore/location/decision.py",
        "    error = _cut_short(facts) or facts.damage or facts.disowned",
        "    error = _cut_short(facts) or facts.damage",
        "tests/unit/restore/location/test_decision.py",
    ),
    Mutation(
        "a start at a location that a restore has half filled",
        "pyspark_ckpt/restore/location/decision.py",
        "    if facts.is_half_seeded:",
        "    if False:",
        "tests/unit/restore/location/test_decision.py",
    ),
    Mutation(
        "a directory that comes while the content is swapped",
        "pyspark_ckpt/restore/location/swap.py",
        "    except FileExistsError:\n        # A driver with a lower",
        "    except ZeroDivisionError:\n        # A driver with a lower",
        "tests/unit/restore/location/test_swap.py -k that_comes",
    ),
    Mutation(
        "new content that was set aside after a lower claim had moved it in",
        "pyspark_ckpt/restore/location/swap.py",
        "        if not location.exists(name):  # it was moved in",
        "        if False:  # it was moved in",
        "tests/unit/restore/location/test_swap.py -k lower_claim",
    ),
    Mutation(
        "an epoch that another driver has begun before a restart in place",
        "pyspark_ckpt/restore/location/swap.py",
        " and not _reserve(location, begun, begun.epoch):",
        " and False:",
        "tests/unit/restore/location/test_swap.py -k not_lost",
    ),
    Mutation(
        "an epoch that another driver begins during a restart in place",
        "pyspark_ckpt/restore/location/swap.py",
        "        location.write(name, [location.read(staged)])\n",
        "        return True\n",
        "tests/unit/restore/location/test_swap.py -k not_lost",
    ),
    Mutation(
        "a restart in place that has begun is never void",
        "pyspark_ckpt/restore/location/swap.py",
        "    if location.exists(note):",
        "    if False:",
        "tests/unit/restore/location/test_swap.py -k not_void",
    ),
    Mutation(
        "a start at a location whose content is swapped meanwhile",
        "pyspark_ckpt/restore/location/start_location.py",
        "        if self.storage.exists(ROLLBACK_MARKER) or self._is_swapped():",
        "        if False:",
        "tests/unit/restore/location/test_swap.py -k swapped_meanwhile",
    ),
    Mutation(
        "a rollback during another one",
        "pyspark_ckpt/restarting/rollback.py",
        "        swap(location, wanted, lease)",
        "        swap(location, wanted, type('Alone', (), {'check': lambda _: None})())",
        "tests/query/restoring/test_rollback.py -k overtaken",
    ),
    Mutation(
        "a rollback of a query that runs elsewhere",
        "pyspark_ckpt/restarting/stopped.py",
        '        if new - {"ended"}:',
        "        if False:",
        "tests/unit/restarting/test_silence.py",
    ),
    Mutation(
        "the driver of a term whose file was replaced",
        "pyspark_ckpt/stores/directory.py",
        "        if not is_ours:\n            raise FencedError(\n"
        '                f"{self._storage.url}: these',
        "        if False:\n            raise FencedError(\n"
        '                f"{self._storage.url}: these',
        "tests/unit/restarting/test_rollback.py",
    ),
    Mutation(
        "the query that writes to an output path",
        "pyspark_ckpt/restore/location/sink_path.py",
        "    if writer is not None and writer.query_id not in query.valid:",
        "    if False:",
        "tests/unit/restore/location/test_sink_path.py",
    ),
    Mutation(
        "the query that a shadow follows",
        "pyspark_ckpt/shadowing/followed.py",
        "        if self._log.query_id() != self._query_id:",
        "        if False:",
        "tests/unit/shadowing/test_followed.py",
    ),
)
