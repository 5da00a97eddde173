"""A hostile savepoint is refused before a data file is opened; nothing is executed."""

from __future__ import annotations

import base64
import io
import json
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import CheckpointError, CorruptFileError, UnsafePathError
from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, StateDescriptor
from pyspark_ckpt.formats.metadata import (
    CheckpointMetadata,
    SourceLog,
    SparkOperatorFile,
    SparkOperatorMetadata,
)
from pyspark_ckpt.formats.metadata_check import MAX_FILES
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.lineage import lineage
from pyspark_ckpt.history.verification import verify
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.durable.stored_files import read_base
from pyspark_ckpt.restore import spark_files
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_files import checked_content, is_checked
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.snapshot.data_source import StateDataSource
from pyspark_ckpt.snapshot.snapshot import open_state
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.state_files import with_operator_id
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.unit.restore.tampered import packed, tampered

Change = Callable[[dict[str, Any]], None]


def read_by_spark(path: str) -> object:
    return StateDataSource({"path": path, "operator": "op", "state": "n"})


READERS = [RestoreSource, verify, dispose_savepoint, lineage, open_state, read_by_spark]
SCHEMA = T.StructType().add("k", T.StringType()).json()


@pytest.fixture
def root(storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path) -> Path:
    """A savepoint whose data files must not be opened any more."""
    made = write_savepoint(snapshot, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    return Path(made.path)


def rewrite(root: Path, change: Change) -> None:
    """Change the content of a ``_metadata`` and give it a right checksum."""
    fields = msgspec.to_builtins(read_metadata(LocalStorage(root)))
    change(fields)
    (root / "_metadata").write_bytes(packed(msgspec.json.encode(fields)))


def refused(
    root: Path, opened: list[str], error: type[Exception] = CheckpointError, match: str = "."
) -> None:
    """Check that every reader refuses it, opens no data file and changes nothing."""
    before = sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*"))
    for reader in READERS:
        opened.clear()
        with pytest.raises(error, match=match):
            reader(str(root))
        assert [name for name in opened if str(root) in name] == [str(root / "_metadata")]
    assert sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*")) == before


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "/etc/passwd", "shared/../../outside", "shared/..", ".", "", "shared/./base",
        "file:///etc/passwd", "s3://bucket/key", "http://host/x", "~/x", "shared\\base",
        "shared/base\0", "shared//base", "shared/base/", "C:/x", "shared/\u202ebase", "%2e%2e/x",
        "a/" * 300 + "a",
    ],
)  # fmt: skip
def test_a_path_that_is_not_plain(root: Path, opened: list[str], path: str) -> None:
    """Scenario 44: paths that lead elsewhere."""
    (root.parent / "outside").write_bytes(b"x")
    metadata = read_metadata(LocalStorage(root))
    log = SourceLog(0, "0", FileReference(path, 1, "0" * 64))
    tampered(root, msgspec.structs.replace(metadata, source_logs=(log,)))
    refused(root, opened, UnsafePathError)


def test_a_link_out_of_the_savepoint(root: Path, opened: list[str]) -> None:
    """Scenario 44: symbolic links."""
    outside = root.parent / "outside"
    (root / "shared").rename(outside)
    (root / "shared").symlink_to(outside)
    for reader in (RestoreSource, verify, dispose_savepoint):
        opened.clear()
        with pytest.raises(UnsafePathError, match="symbolic link"):
            reader(str(root))
        assert not [name for name in opened if str(outside) in name]
    assert len(list(outside.iterdir())) == 2


@pytest.mark.parametrize("other", ["..", "../..", "/", "file:///", "shared"])
def test_another_root(root: Path, opened: list[str], other: str) -> None:
    rewrite(root, lambda fields: fields.update(root=other))
    refused(root, opened, UnsafePathError, "start from")


def test_a_future_format(root: Path, opened: list[str]) -> None:
    (root / "_metadata").write_bytes(packed(b'{"new": 1}', version=99))
    refused(root, opened, CorruptFileError, "upgrade")


def test_a_wrong_digest_of_metadata(root: Path, opened: list[str]) -> None:
    content = bytearray((root / "_metadata").read_bytes())
    content[-5] ^= 1
    (root / "_metadata").write_bytes(content)
    refused(root, opened, CorruptFileError, "checksum")


def test_a_wrong_digest_of_a_file(root: Path) -> None:
    content = bytearray((root / "shared" / "base").read_bytes())
    content[0] ^= 1
    (root / "shared" / "base").write_bytes(content)
    with pytest.raises(CorruptFileError, match="shared/base"):
        verify(str(root))


@pytest.mark.parametrize(
    "duplicated",
    [b'"root":"."', b'"epoch":6', b'"parallelism":4', b'"path":"shared/base"', b'"version":"4-b"'],
)
def test_a_field_that_is_there_twice(root: Path, opened: list[str], duplicated: bytes) -> None:
    """Scenario 8: duplicate keys of JSON."""
    body = (root / "_metadata").read_bytes()[52:]
    assert duplicated in body
    key = duplicated.partition(b":")[0]
    first = key + (b':".."' if duplicated.endswith(b'"') else b":7") + b"," + duplicated
    (root / "_metadata").write_bytes(packed(body.replace(duplicated, first, 1)))
    refused(root, opened, CorruptFileError, "twice")


def test_a_field_that_is_not_known(root: Path, opened: list[str]) -> None:
    rewrite(root, lambda fields: fields.update(hook="import os"))
    refused(root, opened, CorruptFileError, "unknown field")


@pytest.mark.parametrize("size_bytes", [1 << 50, (1 << 63) - 1, -1, 0])
def test_an_absurd_size(root: Path, opened: list[str], size_bytes: int) -> None:
    """Scenario 44: declared sizes."""
    metadata = read_metadata(LocalStorage(root))
    (log,) = metadata.source_logs
    file = FileReference(log.file.path, size_bytes, log.file.sha256)
    tampered(root, msgspec.structs.replace(metadata, source_logs=(SourceLog(0, "0", file),)))
    for reader in (RestoreSource, verify):
        opened.clear()
        with pytest.raises(CorruptFileError):
            reader(str(root))
        assert not [name for name in opened if "shared" in name]


@pytest.mark.parametrize("what", ["files", "objects"])
def test_too_many_entries_cost_neither_time_nor_memory(
    root: Path, opened: list[str], what: str
) -> None:
    """Scenarios 8 and 44: refused by counting, before anything is made of them."""
    one, count = (b'{"path":"a","size_bytes":1,"sha256":""}', MAX_FILES + 1)
    if what == "objects":
        one, count = b'{"a":0}', 4_000_001
    listed = count - (what == "objects")  # the whole is an object too
    body = b'{"source_logs":[' + b",".join([one] * listed) + b"]}"
    (root / "_metadata").write_bytes(packed(body))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    refused(root, opened, CorruptFileError, f"{count} {what}")
    assert time.process_time() - started < 10
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) * 1024
    assert grown < 4 * len(body)


def test_a_million_references_to_one_file_is_refused(root: Path, opened: list[str]) -> None:
    metadata = read_metadata(LocalStorage(root))
    log = metadata.source_logs[0]
    tampered(root, msgspec.structs.replace(metadata, source_logs=(log,) * 1_000_000))
    refused(root, opened, CorruptFileError, "limit")


def test_a_pickle_in_the_place_of_metadata(
    root: Path, opened: list[str], canary: tuple[bytes, Path]
) -> None:
    """Scenario 43: `_metadata` is a pickle."""
    for content in (canary[0], packed(canary[0])):
        (root / "_metadata").write_bytes(content)
        refused(root, opened, CorruptFileError)


@pytest.mark.parametrize("where", ["key_schema", "value_schema", "earlier", "map_key"])
def test_a_pickle_in_a_schema(root: Path, canary: tuple[bytes, Path], where: str) -> None:
    """Scenario 43: PySpark's own reader of schemas unpickles what a user-defined type names."""
    udt = {
        "type": "udt", "pyClass": "nowhere.Canary", "sqlType": "string",
        "serializedClass": base64.b64encode(canary[0]).decode(),
    }  # fmt: skip
    field = {"name": "k", "type": udt, "nullable": True, "metadata": {}}
    hostile = json.dumps({"type": "struct", "fields": [field]})
    good = T.StructType().add("n", T.LongType()).json()
    state = StateDescriptor(
        "count",
        "map",
        hostile if where == "value_schema" else good,
        map_key_schema=hostile if where == "map_key" else good,
        earlier_schemas=(hostile,) if where == "earlier" else (),
    )
    key_schema = hostile if where == "key_schema" else SCHEMA
    metadata = read_metadata(LocalStorage(root))
    (operator,) = metadata.operators
    handles = tuple(
        msgspec.structs.replace(handle, states=(state,), key_schema=key_schema)
        for handle in operator.handles
    )
    operator = msgspec.structs.replace(operator, handles=handles, key_schema=key_schema)
    tampered(root, msgspec.structs.replace(metadata, operators=(operator,)))
    wanted = OperatorDescriptor(
        uid="count", parallelism=4, max_parallelism=128, key_schema=SCHEMA,
        states=(StateDescriptor("count", "map", good, map_key_schema=good),),
    )  # fmt: skip
    with pytest.raises(CorruptFileError, match="user-defined type"):
        plan_of(
            RestoreSource(str(root)), StatefulOperators((wanted,)), RestoreRequest(str(root))
        ).check()


@pytest.mark.parametrize("schema", ["", "{", "[]", '"x"', '{"type":"struct"}', "[" * 100_000])
def test_a_text_that_is_no_schema(root: Path, schema: str) -> None:
    metadata = read_metadata(LocalStorage(root))
    (operator,) = metadata.operators
    operator = msgspec.structs.replace(operator, key_schema=schema)
    tampered(root, msgspec.structs.replace(metadata, operators=(operator,)))
    wanted = OperatorDescriptor(uid="count", parallelism=4, max_parallelism=128, key_schema=SCHEMA)
    with pytest.raises(CorruptFileError, match="schema"):
        plan_of(
            RestoreSource(str(root)), StatefulOperators((wanted,)), RestoreRequest(str(root))
        ).check()


@pytest.mark.parametrize("form", ["changes", "canonical", "sst", "../../x"])
def test_a_pickle_in_the_place_of_a_data_file(
    storage: Storage, canary: tuple[bytes, Path], form: str
) -> None:
    """Scenario 43: a data file is a pickle."""
    file = storage.write("shared/base", [canary[0]])
    base = BaseSnapshot("4-b", 4, 9, (BaseFile("state", file),), form)
    with pytest.raises(CorruptFileError):
        list(read_base(storage, base))


def test_pickles_in_keys_and_values_are_bytes(storage: Storage, canary: tuple[bytes, Path]) -> None:
    """Scenario 43: keys and values that are pickles."""
    from pyspark_ckpt.formats.change_file import encode_changes
    from state_backends import Changes

    file = storage.write("shared/base", encode_changes([Changes([canary[0]], [canary[0]])]))
    base = BaseSnapshot("4-b", 4, 1, (BaseFile("state", file),))
    (part,) = read_base(storage, base)
    assert (part.keys, part.values) == ([canary[0]], [canary[0]])


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "backup"), ("epoch", -1), ("operators", None), ("parallelism", 0),
     ("parallelism", 1 << 40), ("max_parallelism", 1 << 20), ("time_mode", "Sundial")],
)  # fmt: skip
def test_numbers_and_names_that_cannot_be(
    root: Path, opened: list[str], field: str, value: Any
) -> None:
    def change(fields: dict[str, Any]) -> None:
        if field in fields:
            fields[field] = fields[field] * 2 if value is None else value
        else:
            fields["operators"][0][field] = value

    rewrite(root, change)
    refused(root, opened, CorruptFileError)


NATIVE = "0/1.snapshot"


@pytest.mark.parametrize(
    ("name", "operator_id"),
    [
        ("../../offsets/0", 1),
        ("/etc/passwd", 1),
        ("0/../../commits/0", 1),
        ("offsets/0", 1),
        ("metadata", 1),
        ("0", 1),
        ("0/.hidden", 1),
        ("0/http://host/x", 1),
        (NATIVE, 0),
        (NATIVE, -1),
    ],
)
def test_names_of_sparks_state_files(
    storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path, name: str, operator_id: int
) -> None:
    """They become paths in a query's location: only names of state stores of one operator pass."""
    file = storage.write("shared/native", [b"x"])
    native = SparkOperatorMetadata(1, "dedupe", (SparkOperatorFile(NATIVE, file),))
    whole = msgspec.structs.replace(snapshot, spark_operators=(native,))
    made = write_savepoint(whole, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    assert RestoreSource(made.path).metadata.spark_operators == (native,)

    def change(fields: dict[str, Any]) -> None:
        (operator,) = fields["spark_operators"]
        operator["operator_id"] = operator_id
        operator["files"][0]["name"] = name

    rewrite(Path(made.path), change)
    with pytest.raises((CorruptFileError, UnsafePathError)):
        RestoreSource(made.path)


@pytest.mark.parametrize(
    ("index", "name"),
    [
        (0, "../../offsets/9"), (0, "/etc/passwd"), (0, ""), (0, "."), (0, "1/2"), (0, "01"),
        (0, "1.compact.compact"), (0, "x"), (0, "1\n"), (-1, "1"), (1 << 40, "1"),
    ],
)  # fmt: skip
def test_names_of_source_logs(root: Path, opened: list[str], index: int, name: str) -> None:
    """They become paths in the location of a query."""

    def change(fields: dict[str, Any]) -> None:
        fields["source_logs"][0].update(source_index=index, log_name=name)

    rewrite(root, change)
    refused(root, opened, CorruptFileError, "log file")


def test_a_source_log_that_is_there_twice(root: Path, opened: list[str]) -> None:
    rewrite(root, lambda fields: fields.update(source_logs=fields["source_logs"] * 2))
    refused(root, opened, CorruptFileError, "twice")


def with_entry(root: Path, fields: object) -> RestoreSource:
    rewrite(root, lambda metadata: metadata.update(offsets_entry=f"v1\n{json.dumps(fields)}\n-"))
    return RestoreSource(str(root))


def test_conf_that_names_a_class_is_dropped(root: Path) -> None:
    """Spark loads state stores and codecs by name; it never gets values of other keys."""
    stores = "spark.sql.streaming.stateStore."
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    plain = {
        f"{stores}providerClass": provider,
        f"{stores}compression.codec": "zstd",
        f"{stores}rocksdb.formatVersion": "5",
        "spark.sql.streaming.multipleWatermarkPolicy": "min",
    }
    hostile = {
        f"{stores}encodingFormat": "com.stranger.Format",
        f"{stores}other.codec": "com.stranger.Codec",
        "spark.sql.shuffle.partitions": "2\n3",
        "spark.jars": "plain",
        "spark.sql.warehouse.dir": "http://stranger/x",
    }
    hostile["spark.sql.catalog.x"] = "a" * 65
    conf = with_entry(root, {"conf": {**plain, **hostile}}).plain_conf
    assert conf == plain
    classes = {
        f"{stores}providerClass": "com.stranger.Store",
        f"{stores}compression.codec": provider,
    }
    assert with_entry(root, {"conf": classes}).plain_conf == {}


@pytest.mark.parametrize("fields", [{"conf": []}, {"conf": "x"}, [], 1, "x"])
def test_a_conf_that_is_no_mapping(root: Path, fields: object) -> None:
    with pytest.raises(CorruptFileError, match="offsets"):
        _ = with_entry(root, fields).plain_conf


@pytest.mark.parametrize("value", ["1", 1.5, None, True, [1], {}])
def test_impossible_times(root: Path, value: object) -> None:
    source = with_entry(root, {"batchWatermarkMs": 5, "batchTimestampMs": value})
    with pytest.raises(CorruptFileError, match="batchTimestampMs"):
        plan_of(source, StatefulOperators(()), RestoreRequest(str(root)))


def archive(fields: str, *more: str) -> bytes:
    """A snapshot of RocksDB as Spark stores it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as target:
        target.writestr("metadata", f"v1\n{fields}")
        for name in ("CURRENT", "MANIFEST-000005", *more):
            target.writestr(name, "x")
    return content.getvalue()


SST = '"dfsSstFileName":"000009-1b.sst","localFileName":"000009.sst","sizeBytes":9'
SOUND = f'{{"sstFiles":[{{{SST}}}],"logFiles":[],"numKeys":4}}'


def test_a_snapshot_of_rocksdb_is_passed_on(tmp_path: Path) -> None:
    made = checked_content("0/4.zip", archive(SOUND, "OPTIONS-000007"), "x")
    with zipfile.ZipFile(io.BytesIO(made)) as found:
        assert sorted(found.namelist()) == [
            "CURRENT",
            "MANIFEST-000005",
            "OPTIONS-000007",
            "metadata",
        ]
        assert found.read("metadata").decode() == f"v1\n{SOUND}"


@pytest.mark.parametrize(
    "content",
    [
        archive(SOUND.replace("000009-1b.sst", "../../../../etc/passwd")),
        archive(SOUND.replace("000009.sst", "../../../../root/.ssh/authorized_keys")),
        archive(SOUND.replace("000009.sst", "/etc/cron.d/x")),
        archive(SOUND.replace('"000009.sst"', "7")),
        archive(SOUND.replace('"logFiles":[]', '"logFiles":[{"dfsLogFileName":"s3://x/y"}]')),
        archive(SOUND.replace(SST, f'{SST},"localFileName":"../x"')),
        archive(SOUND, "../../escaped"),
        archive(SOUND, "/etc/passwd"),
        archive("{"),
        archive("[" * 100_000),
        b"no archive",
        archive(SOUND)[:-30],
    ],
)
def test_a_snapshot_of_rocksdb_that_names_other_files(content: bytes) -> None:
    """Spark's executors would copy files by these names, from anywhere to anywhere."""
    with pytest.raises(CorruptFileError, match="state stores"):
        checked_content("0/default/4.zip", content, "shared/native")


def test_a_snapshot_of_rocksdb_that_expands_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_files, "MAX_CHECKED_BYTES", 10)
    with pytest.raises(CorruptFileError, match="expands"):
        checked_content("0/4.zip", archive(SOUND), "shared/native")


UDT = '{"type":"udt","class":"com.stranger.Type"}'


@pytest.mark.parametrize("path", ["0/_metadata/schema", "_stateSchema/default/0_a1"])
@pytest.mark.parametrize(
    "text",
    [
        UDT.encode(),
        UDT.replace("udt", "\\u0075dt").encode(),
        UDT.encode().replace(b"udt", b"u\x00\x40dt"),  # a text in parts, each after its length
        UDT.encode().replace(b"udt", b"udt\x00\x10"),
    ],
)
def test_a_schema_of_sparks_with_a_type_that_it_would_load(path: str, text: bytes) -> None:
    assert is_checked(path)
    with pytest.raises(CorruptFileError, match="user-defined"):
        checked_content(path, b"\x00\x02v2" + text, "shared/native")
    sound = b'\x00\x02v2{"name":"width","type":"struct","fields":[{"name":"audty"}]}'
    assert checked_content(path, sound, "shared/native") == sound


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "file:/loc/state/1/_stateSchema/../../x", "/_stateSchema/", "x/_stateSchema//x",
     "x/_stateSchema/a/../../b", "x/_stateSchema/a b"],
)  # fmt: skip
def test_schema_files_that_sparks_metadata_names(tmp_path: Path, path: object) -> None:
    def metadata(path: object) -> bytes:
        store = {"storeName": "default", "stateSchemaFilePaths": [path]}
        fields = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]}
        return f"v2\n{json.dumps(fields)}".encode()

    location = LocalStorage(tmp_path)
    sound = with_operator_id(metadata("file:/a/state/0/_stateSchema/default/0_b-1"), location, 3)
    assert f"{tmp_path}/state/3/_stateSchema/default/0_b-1" in sound.decode()
    with pytest.raises(CorruptFileError, match="schema file"):
        with_operator_id(metadata(path), location, 3)
