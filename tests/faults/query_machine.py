"""Random histories of whole queries against a model that is a dict of dicts: scenario 50.

Queries of two operators, whose subtasks are often idle, run epochs, fail, crash, take checkpoints
and savepoints, are forked, rescaled and cleaned up, and lose bytes, in any order. After every step
the newest checkpoint restores to the model of its epoch, no file that anything refers to is
missing, each file has an owner, and no step changes a file of another query or of a savepoint.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles, garbage_of
from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from state_backends import BACKEND_TYPES
from tests.faults.faulty_storage import FAULTS, FaultyStorage
from tests.faults.keyed_query import (
    KEYS,
    RETAINED,
    UIDS,
    Call,
    Faults,
    KeyedQuery,
    Subtask,
    by_subtask,
    fork,
    stored_key,
    subtask_of,
)
from tests.faults.query_oracle import (
    all_files_of,
    check_present,
    committed_files,
    damaged,
    files_of,
    needed_next,
    places_of,
    restored,
    tree,
    uploaded_of,
    without_owner,
)
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, Writes
from tests.unit.operator.subtask_epochs import IN_MEMORY

MOST_QUERIES = 3
OperatorWrites = dict[str, bytes | None]
WRITES = st.fixed_dictionaries(
    {
        uid: st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=4), max_size=4)
        for uid in UIDS
    }
)
SETTINGS = st.sampled_from(
    [
        ALWAYS,
        NEVER,
        Materialization(interval_ms=10**15, min_changelog_bytes=10**15, max_segments=2),
    ]
)
WHICH = st.sampled_from([0, 0, 0, *range(1, MOST_QUERIES)])
PARALLELISMS = st.sampled_from([2, 1, 3, 2, 5, 1])
UPLOADED = st.sampled_from([1, 0, 1, 2, 6])
"""So many files of each snapshot that waits, before a call; one of RocksDB has several."""

BACKENDS = st.sampled_from(BACKEND_TYPES)
FORMATS = st.sampled_from(list(SavepointFormat))
DAMAGE = st.tuples(st.sampled_from(["flipped", "cut", "longer", "gone"]), st.integers(0, 8 * 4096))
OPERATIONS = st.integers(0, 60)
SOME_OPERATION = st.sampled_from([True, True, False]).flatmap(
    lambda works: st.none() if works else OPERATIONS
)


class QueryMachine(RuleBasedStateMachine):
    """What users, Spark and faults do to queries."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        self.queries: list[KeyedQuery] = []
        self.trees: dict[Path, dict[str, bytes]] = {}
        self.savepoint_trees: dict[Path, dict[str, bytes]] = {}
        self.uploaded: dict[Path, dict[str, set[str]]] = {}
        self.made = 0

    def new_root(self) -> Path:
        self.made += 1
        return self.root / f"q{self.made}"

    def query(self, which: int) -> KeyedQuery:
        """Return the query that the step changes; the others must not change."""
        query = self.queries[which % len(self.queries)]
        self.trees.pop(query.root, None)
        return query

    @initialize(parallelism=PARALLELISMS, backend=BACKENDS)
    def begin(self, parallelism: int, backend: str) -> None:
        self.queries.append(KeyedQuery(self.new_root(), parallelism, backend))

    @rule(
        which=WHICH, batches=st.lists(WRITES, min_size=1, max_size=4), due=SETTINGS,
        twin=st.none() | SETTINGS,
        from_loser=st.booleans(), lasting=st.booleans(),
        fails_at=st.none() | st.integers(0, 6), fault=st.sampled_from(FAULTS),
        uploaded=UPLOADED, followed=st.sampled_from(["none", "last", "each"]),
    )  # fmt: skip
    def epochs(
        self,
        which: int,
        batches: list[dict[str, OperatorWrites]],
        due: Materialization,
        twin: Materialization | None,
        from_loser: bool,
        lasting: bool,
        fails_at: int | None,
        fault: str,
        uploaded: int,
        followed: str,
    ) -> None:
        """Run epochs, perhaps with checkpoints; tasks may fail first, or run twice."""
        query = self.query(which)
        for left, writes in reversed(list(enumerate(reversed(batches)))):
            fate = partial(
                Subtask.call, twin=twin is not None, twin_settings=twin,
                from_loser=from_loser, lasting=lasting,
            )  # fmt: skip
            self.run_epoch(query, writes, due, fate, fails_at, fault, uploaded)
            if (followed == "each" or (followed == "last" and not left)) and query.take():
                self.check_subsumed(query)
                check_present(query.storage.root, needed_next(query))

    def run_epoch(
        self,
        query: KeyedQuery,
        writes: dict[str, OperatorWrites],
        due: Materialization,
        fate: Callable[[Subtask, int, Writes], Handle],
        fails_at: int | None,
        fault: str,
        uploaded: int,
    ) -> None:
        number = 0 if query.epoch is None else query.epoch + 1
        made: dict[str, dict[int, Handle]] = {}
        for uid, place, changes in by_subtask(query, writes):
            subtask = query.subtask(uid, place)
            subtask.settings = due
            before = query.state_files()
            _upload(subtask, uploaded)
            if fails_at is not None:
                query.task_faults.set(fails_at, fault)
            try:
                handle = fate(subtask, number, changes)
            except (OSError, CkptError):
                query.task_faults.clear()
                handle = fate(subtask, number, changes)
            query.task_faults.clear()
            made.setdefault(uid, {})[place] = handle
            written = query.state_files() - before
            subtask.calls.append(Call(number, subtask.line, written))
        query.commit(writes, made)

    @rule(which=WHICH, fails_at=SOME_OPERATION, fault=st.sampled_from(FAULTS[:2]))
    def checkpoint(self, which: int, fails_at: int | None, fault: str) -> None:
        query = self.query(which)
        if query.epoch is None:
            return
        if fails_at is None:
            if query.take():
                self.check_subsumed(query)
            return
        query.faults.set(fails_at, fault)
        before = query.ids()
        _attempted(query)
        query.faults.clear()
        query.unpublished |= query.ids() - before - set(query.checkpoints())

    @rule(which=WHICH, copies_too=st.booleans(), writes=WRITES, dies_at=SOME_OPERATION)
    def crash(
        self, which: int, copies_too: bool, writes: dict[str, OperatorWrites], dies_at: int | None
    ) -> None:
        """Kill driver and executors in an epoch that is not committed, or in a checkpoint."""
        query = self.query(which)
        number = 0 if query.epoch is None else query.epoch + 1
        for uid, place, changes in by_subtask(query, writes):
            subtask = query.subtask(uid, place)
            before, subtask.number = query.state_files(), number - 1
            subtask.attempt(changes)
            written = query.state_files() - before
            subtask.calls.append(Call(number, subtask.line, written))
        if dies_at is not None and query.epoch is not None:
            query.faults.set(dies_at, is_final=True)
            _attempted(query)
        self.start_again(query)
        for subtask in query.subtasks.values():
            subtask.lose_processes(copies_too=copies_too)
            assert_reads(query, subtask)

    @rule(which=WHICH)
    def restart(self, which: int) -> None:
        self.start_again(self.query(which))

    def start_again(self, query: KeyedQuery) -> None:
        query.runner.close()
        query.start()
        query.unpublished.clear()
        for subtask in query.subtasks.values():
            subtask.run_id += "'"

    @rule(which=WHICH, savepoint_format=FORMATS, fails_at=SOME_OPERATION)
    def savepoint(
        self, which: int, savepoint_format: SavepointFormat, fails_at: int | None
    ) -> None:
        query = self.query(which)
        if query.epoch is None:
            return
        if fails_at is not None:
            query.faults.set(fails_at)
        try:
            path = query.savepoint(savepoint_format)
        except (OSError, CkptError):
            assert fails_at is not None
        else:
            self.savepoint_trees[path] = tree(path)
            assert restored(path) == query.model
        query.faults.clear()
        there = set((query.root / "savepoints").glob("*"))
        assert there == set(query.savepoints), "a failed one is left"

    @precondition(lambda self: len(self.queries) < MOST_QUERIES)
    @rule(
        which=WHICH, place=st.integers(0, 9), parallelism=st.none() | PARALLELISMS,
        backend=BACKENDS, fails_at=st.none() | st.integers(0, 9),
    )  # fmt: skip
    def fork(
        self,
        which: int,
        place: int,
        parallelism: int | None,
        backend: str,
        fails_at: int | None,
    ) -> None:
        """Start another query from a checkpoint or savepoint of this one, without touching it."""
        origin = self.queries[which % len(self.queries)]
        places = places_of(origin)
        if not places:
            return
        path = list(places)[place % len(places)]
        model = origin.models[places[path]]
        root, faults = self.new_root(), Faults()
        parallelism = parallelism or origin.parallelism
        if fails_at is not None:
            faults.set(fails_at)
        try:
            query = fork(path, root, model, parallelism, backend, faults)
        except OSError:
            assert fails_at is not None
            shutil.rmtree(root)
            return
        self.queries.append(query)
        for uid, handles in query.handles.items():
            for number in handles:
                assert_reads(query, query.subtask(uid, number))

    @precondition(lambda self: len(self.queries) > 1)
    @rule(which=WHICH)
    def delete_a_query(self, which: int) -> None:
        """Remove everything of a query; its forks do not need it."""
        query = self.queries.pop(which % len(self.queries))
        query.runner.close()
        shutil.rmtree(query.root)
        self.trees.pop(query.root, None)
        for path in query.savepoints:
            del self.savepoint_trees[path]

    @rule(which=WHICH, parallelism=PARALLELISMS, backend=BACKENDS)
    def rescale(self, which: int, parallelism: int, backend: str) -> None:
        """Stop a query with a checkpoint, and continue from it at another parallelism."""
        old = self.query(which)
        if old.epoch is None:
            return
        old.take()
        path = list(old.checkpoints().values())[-1]
        new = fork(path, self.new_root(), old.model, parallelism, backend, Faults())
        old.runner.close()
        shutil.rmtree(old.root)
        for savepoint in old.savepoints:
            del self.savepoint_trees[savepoint]
        self.queries[self.queries.index(old)] = new

    @rule(which=WHICH, dies_at=st.none() | st.integers(0, 12))
    def clean_up(self, which: int, dies_at: int | None) -> None:
        """Clean up; exactly the announced garbage is deleted.

        Nothing is, while a driver that died may still complete a newer checkpoint.
        """
        query = self.query(which)
        complete = list(query.checkpoints())
        if not complete:
            return
        faults = Faults()
        storage = FaultyStorage(query.storage, faults)
        files = CheckpointFiles(storage, CompletedCheckpoints(storage))
        newest = read_metadata(query.storage, f"chk-{complete[-1]}")
        needed = {path for number in complete for path in files_of(query, number)}
        begun = (query.root / "checkpoints").glob("chk-*")
        is_certain = all(int(each.name[4:]) <= complete[-1] for each in begun)
        said = set(garbage_of(query.storage, newest, needed)) if is_certain else set()
        before = query.state_files()
        if dies_at is not None:
            faults.set(dies_at, is_final=True)
        try:
            files.clean(complete, [], complete[0])
        except OSError:
            assert dies_at is not None
            assert before - query.state_files() <= said
        else:
            assert before - query.state_files() == said
            assert list(query.checkpoints()) == complete
            if is_certain:
                self.check_cleaned(query)

    @rule(which=WHICH, place=st.integers(0, 99), damage=DAMAGE, backend=st.none() | BACKENDS)
    def corrupt(self, which: int, place: int, damage: tuple[str, int], backend: str | None) -> None:
        """Damage a file: what refers to it refuses and names it; everything else restores."""
        query = self.query(which)
        places = places_of(query)
        needed = {path: all_files_of(path) for path in places}
        victims = sorted(set().union(*needed.values()))
        if not victims:
            return
        victim = victims[place % len(victims)]
        content = victim.read_bytes()
        bad = damaged(content, *damage)
        victim.unlink()
        if bad is not None:
            victim.write_bytes(bad)
        try:
            self.check_refused(query, victim, needed, places, backend)
        finally:
            victim.write_bytes(content)

    def check_refused(
        self,
        query: KeyedQuery,
        victim: Path,
        needed: dict[Path, set[Path]],
        places: dict[Path, int],
        backend: str | None,
    ) -> None:
        for path, files in needed.items():
            if victim in files:
                with pytest.raises(CkptError) as refused:
                    restored(path, backend)
                assert victim.name in str(refused.value) or not victim.exists()
                assert path.name in str(refused.value) or victim.name in str(refused.value)
                root = self.new_root()
                with pytest.raises(CkptError):
                    fork(path, root, {}, query.parallelism + 1, query.backend, Faults())
                shutil.rmtree(root, ignore_errors=True)
            else:
                assert restored(path, backend) == query.models[places[path]]
        relative = victim.relative_to(query.root).as_posix().removeprefix("checkpoints/")
        if relative in committed_files(query):
            with pytest.raises(CorruptFileError, match=victim.name):
                query.savepoint(SavepointFormat.CANONICAL)
            there = set((query.root / "savepoints").glob("*"))
            assert there == set(query.savepoints), "a refused one is left"

    @invariant()
    def the_newest_checkpoints_restore(self) -> None:
        for query in self.queries:
            if query.root in self.trees:
                continue  # it has not changed
            checkpoints = query.checkpoints()
            assert max(checkpoints, default=0) >= max(query.complete, default=0), "one is lost"
            if checkpoints:
                number, path = list(checkpoints.items())[-1]
                epoch = read_metadata(LocalStorage(path)).epoch
                assert query.complete.get(number, epoch) == epoch
                assert restored(path) == query.models[epoch]

    @invariant()
    def nothing_that_is_referred_to_is_missing(self) -> None:
        for query in self.queries:
            if query.root in self.trees:
                continue
            for number in query.checkpoints():
                check_present(query.storage.root, files_of(query, number))
            check_present(query.storage.root, needed_next(query))
            before = self.uploaded.get(query.root, {})
            after = self.uploaded[query.root] = uploaded_of(query)
            for snapshot_id in before.keys() & after.keys():
                assert before[snapshot_id] <= after[snapshot_id], "an epoch may turn to it"

    @invariant()
    def other_queries_and_savepoints_are_as_they_were(self) -> None:
        for path, content in self.savepoint_trees.items():
            assert tree(path) == content
        for query in self.queries:
            assert tree(query.root) == self.trees.setdefault(query.root, tree(query.root))

    def check_subsumed(self, query: KeyedQuery) -> None:
        """Check what a completed checkpoint leaves."""
        assert len(query.checkpoints()) <= RETAINED
        self.check_cleaned(query)

    def check_cleaned(self, query: KeyedQuery) -> None:
        """Check that each remaining file belongs to a checkpoint or to a subtask's last calls.

        A driver that died after a completed checkpoint has left one more than are retained. It
        stays until the next one completes.
        """
        checkpoints = query.checkpoints()
        ids = query.ids()
        # The ids of later attempts are not forgotten.
        others = {number for number in ids if number <= max(checkpoints)} - set(checkpoints)
        # An attempt that failed while it was published stays until it is subsumed.
        assert all(number > min(checkpoints) for number in others)
        assert others <= query.unpublished
        assert not without_owner(query)

    def teardown(self) -> None:
        """Check that both backends restore all checkpoints and savepoints."""
        for query in self.queries:
            query.runner.close()
            for path, epoch in places_of(query).items():
                for backend in BACKEND_TYPES:
                    assert restored(path, backend) == query.models[epoch]
        shutil.rmtree(self.root)


def _upload(subtask: Subtask, files: int) -> None:
    """Upload this many of the waiting files."""
    assert subtask.uploads is not None
    for directory in list(subtask.uploads.waiting):
        for _ in range(files):
            if not subtask.uploads.step(directory):
                break


def _attempted(query: KeyedQuery) -> None:
    try:
        query.take()
    except (OSError, CkptError):
        return


def assert_reads(query: KeyedQuery, subtask: Subtask) -> None:
    """Check a subtask's state at the handle that Spark committed; it starts from there again."""
    uid, number = subtask.handle.uid, subtask.handle.subtask
    handle = query.handles.get(uid, {}).get(number)
    if handle is None:
        subtask.begin_anew()
        return
    subtask.handle = handle
    expected = {
        stored_key(key): value
        for key, value in query.model[uid].items()
        if subtask_of(key, query.parallelism) == number
    }
    assert subtask.read(handle) == expected
