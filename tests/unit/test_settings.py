"""Conf keys are parsed and checked; each error names what is allowed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.settings import (
    INTERNAL_SETTINGS,
    KEYS,
    MAX_INLINE_BYTES,
    PREFIX,
    RUNTIME_KEY,
    SETTINGS,
    Retention,
    Setting,
    Settings,
    is_ckpt_option,
    read_conf_file,
    read_settings,
)
from tools import write_settings

METRICS = "spark.ckpt.metrics."
HA = "spark.ckpt.high-availability."
ROOT = "spark.ckpt.internal.high-availability.zookeeper.path.root"
CHECKPOINTING = "spark.ckpt.execution.checkpointing."
RECOVERY = "spark.ckpt.execution.state-recovery."
BACKEND = "spark.ckpt.state.backend.type"
INTERVAL = f"{CHECKPOINTING}interval"
PAUSE = f"{CHECKPOINTING}min-pause"
TIMEOUT = f"{CHECKPOINTING}timeout"
TOLERABLE = f"{CHECKPOINTING}tolerable-failed-checkpoints"
RETENTION = f"{CHECKPOINTING}externalized-checkpoint-retention"
RETAINED = f"{CHECKPOINTING}num-retained"
INLINE = "spark.ckpt.internal.execution.checkpointing.data-inline-threshold"


def setting(key: str, value: str) -> object:
    return getattr(read_settings({key: value}, {}), KEYS[key].field)


def test_defaults_hold_without_any_key() -> None:
    assert read_settings({}, {}) == Settings(
        backend_type="rocksdb",
        interval_ms=30_000,
        min_pause_ms=0,
        timeout_ms=600_000,
        tolerable_failed_checkpoints=3,
        retention="RETAIN_ON_CANCELLATION",
        checkpoints_directory=None,
        savepoints_directory=None,
        num_retained=3,
        inline_threshold_bytes=20_480,
        restore_path=None,
        claim_mode="NO_CLAIM",
        allow_non_restored_state=False,
        allow_missing_input=False,
        restore_fallback=False,
    )


def test_every_setting_has_a_key_of_the_prefix_and_every_key_a_setting() -> None:
    assert all(key.startswith(PREFIX) for key in KEYS)
    named = sorted(key.field for key in KEYS.values() if key.field is not None)
    assert named == sorted({*Settings.__dataclass_fields__} - {"given"})


def test_each_given_key_is_kept_with_where_it_came_from() -> None:
    settings = read_settings({INTERVAL: "5min", PAUSE: "1s"}, {PAUSE: "2s"})
    assert settings.given == {INTERVAL: ("5min", "conf"), PAUSE: ("2s", "option")}
    assert settings == dataclasses.replace(settings, given={}), (
        "it does not make settings different"
    )


def test_all_keys_are_read() -> None:
    conf = {
        BACKEND: "heap",
        INTERVAL: "5min",
        PAUSE: "5s",
        TIMEOUT: "1h",
        TOLERABLE: "4",
        RETENTION: "DELETE_ON_CANCELLATION",
        f"{CHECKPOINTING}dir": "/checkpoints",
        f"{CHECKPOINTING}savepoint-dir": "file:///savepoints",
        RETAINED: "7",
        INLINE: "1kb",
        "spark.ckpt.execution.memory-limit": "2mb",
        f"{HA}type": "ZooKeeper",
        f"{HA}zookeeper.quorum": "one:2181,two:2181",
        ROOT: "/spark/checkpoints",
        f"{HA}kubernetes.namespace": "streaming-jobs",
        "spark.ckpt.internal.state.changelog.periodic-materialize.interval": "1min",
        "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
        "spark.ckpt.internal.state.changelog.materialize.max-segments": "10",
        f"{RECOVERY}path": "/savepoint",
        f"{RECOVERY}claim-mode": "claim",
        f"{RECOVERY}ignore-unclaimed-state": "True",
        f"{RECOVERY}allow-missing-input": "true",
        f"{RECOVERY}fallback": "true",
        "spark.ckpt.parallelism.default": "7",
        "spark.ckpt.internal.execution.hand-over": "Packed",
        "spark.ckpt.quarantine.max-keys": "5",
        "spark.ckpt.internal.quarantine.max-rows-per-key": "6",
        "spark.ckpt.internal.quarantine.max-bytes-per-key": "7kb",
        "spark.ckpt.quarantine.release-on-start": "true",
        "spark.ckpt.capture.on-failure": "true",
        "spark.ckpt.internal.capture.max-size": "3mb",
        "spark.ckpt.rescale.enabled": "true",
        "spark.ckpt.internal.rescale.min-parallelism": "2",
        "spark.ckpt.rescale.max-parallelism": "16",
        "spark.ckpt.rescale.scale-up.epoch-duration": "1min",
        "spark.ckpt.rescale.scale-up.backlog": "100000",
        "spark.ckpt.internal.rescale.scale-down.epoch-duration": "7s",
        "spark.ckpt.internal.rescale.window": "9",
        "spark.ckpt.internal.rescale.min-interval": "1h",
        f"{METRICS}reporters": "OpenTelemetry, prometheus,prometheus",
        f"{METRICS}reporter.prometheus.host": "::1",
        f"{METRICS}reporter.prometheus.port": "0",
    }
    assert set(conf) == set(KEYS)
    assert read_settings(conf, {}) == Settings(
        backend_type="heap",
        hand_over="packed",
        parallelism=7,
        interval_ms=300_000,
        min_pause_ms=5000,
        timeout_ms=3_600_000,
        tolerable_failed_checkpoints=4,
        retention="DELETE_ON_CANCELLATION",
        checkpoints_directory="/checkpoints",
        savepoints_directory="file:///savepoints",
        num_retained=7,
        inline_threshold_bytes=1024,
        memory_limit_bytes=2 * 1024**2,
        high_availability_type="zookeeper",
        zookeeper_quorum="one:2181,two:2181",
        zookeeper_root="/spark/checkpoints",
        kubernetes_namespace="streaming-jobs",
        materialize_interval_ms=60_000,
        materialize_min_bytes=0,
        materialize_max_segments=10,
        restore_path="/savepoint",
        claim_mode="CLAIM",
        allow_non_restored_state=True,
        allow_missing_input=True,
        restore_fallback=True,
        quarantine_keys=5,
        quarantine_rows_per_key=6,
        quarantine_bytes_per_key=7 * 1024,
        releases_at_start=True,
        captures_failures=True,
        capture_limit_bytes=3 * 1024**2,
        rescales_by_rule=True,
        rescale_min_parallelism=2,
        rescale_max_parallelism=16,
        rescale_up_ms=60_000,
        rescale_up_backlog=100_000,
        rescale_down_ms=7_000,
        rescale_window=9,
        rescale_interval_ms=3_600_000,
        metrics_reporters=("opentelemetry", "prometheus"),
        prometheus_host="::1",
        prometheus_port=0,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reporters", "prometheus,"), ("reporters", "none,prometheus"), ("reporters", ""),
        ("reporter.prometheus.port", "65536"), ("reporter.prometheus.port", "-1"),
        ("reporter.prometheus.host", "127.0.0.1:9"), ("reporter.prometheus.host", ""),
    ],
)  # fmt: skip
def test_places_of_metrics_are_checked(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be"):
        setting(f"{METRICS}{key}", value)


def test_a_writer_option_wins_over_the_conf() -> None:
    settings = read_settings({BACKEND: "heap", RETAINED: "5"}, {BACKEND: "rocksdb"})
    assert (settings.backend_type, settings.num_retained) == ("rocksdb", 5)


def test_other_keys_and_the_internal_one_are_left_alone() -> None:
    conf = {"spark.sql.shuffle.partitions": "2", RUNTIME_KEY: "{}", "path": "x", "spark.ckptx": ""}
    assert read_settings(conf, {"checkpointLocation": "x"}) == Settings()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1ms", 1), ("500ms", 500), ("1s", 1000), ("30 s", 30_000), ("2sec", 2000),
        ("5min", 300_000), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000),
        (" 30S ", 30_000), ("1 MIN", 60_000),
    ],
)  # fmt: skip
def test_a_duration_has_a_number_and_a_unit(text: str, milliseconds: int) -> None:
    assert setting(INTERVAL, text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1", 1), ("100b", 100), ("20kb", 20_480), ("20 k", 20_480), ("1MB", 1 << 20),
        ("1m", MAX_INLINE_BYTES),
    ],
)  # fmt: skip
def test_a_size_may_go_without_a_unit(text: str, size: int) -> None:
    assert setting(INLINE, text) == size


@pytest.mark.parametrize(("text", "milliseconds"), [("0", 0), ("0ms", 0), ("0s", 0), ("2s", 2000)])
def test_a_pause_may_be_none(text: str, milliseconds: int) -> None:
    assert setting(PAUSE, text) == milliseconds


def test_no_failed_checkpoint_may_be_tolerated_or_any_number() -> None:
    assert setting(TOLERABLE, "0") == 0
    assert setting(TOLERABLE, "1000") == 1000


@pytest.mark.parametrize(
    "text", ["NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"]
)
def test_retention_is_named_as_in_flink_in_any_case(text: str) -> None:
    assert setting(RETENTION, text) is setting(RETENTION, text.lower()) is Retention(text)
    assert str(Retention(text)) == f"{Retention(text)}" == text


@pytest.mark.parametrize("text", ["heap", "HEAP", " heap "])
def test_a_backend_is_named_in_any_case(text: str) -> None:
    assert setting(BACKEND, text) == "heap"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (BACKEND, ""), (BACKEND, "hashmap"), (BACKEND, "rocksdb,heap"),
        (INTERVAL, ""), (INTERVAL, "30"), (INTERVAL, "0s"), (INTERVAL, "-5s"), (INTERVAL, "s"),
        (INTERVAL, "5 weeks"), (INTERVAL, "1.5s"), (INTERVAL, "5s 3s"), (INTERVAL, "1e3ms"),
        (PAUSE, ""), (PAUSE, "1"), (PAUSE, "-1s"),
        (TIMEOUT, "0"), (TIMEOUT, "0s"), (TIMEOUT, "-1s"),
        (TOLERABLE, "-1"), (TOLERABLE, ""), (TOLERABLE, "some"),
        (RETENTION, ""), (RETENTION, "RETAIN"), (RETENTION, "true"),
        (RETAINED, ""), (RETAINED, "0"), (RETAINED, "-1"), (RETAINED, "many"), (RETAINED, "1.0"),
        (INLINE, ""), (INLINE, "-1"), (INLINE, "2mb"), (INLINE, "1gb"), (INLINE, "1048577"),
        (f"{CHECKPOINTING}dir", ""), (f"{CHECKPOINTING}dir", "  "),
        (f"{CHECKPOINTING}savepoint-dir", ""), (f"{HA}type", "consul"),
        (f"{HA}zookeeper.quorum", "host"), (f"{HA}zookeeper.quorum", "host:1,"),
        (f"{HA}zookeeper.quorum", ""), (ROOT, "x"),
        (f"{HA}kubernetes.namespace", "Jobs"), (f"{HA}kubernetes.namespace", "a/b"),
        (ROOT, "/"), (ROOT, "/a/../b"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_allowed_is_named_with_its_key_and_what_is(
    key: str, value: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_settings({}, {key: value})
    assert repr(key) in str(raised.value)
    assert repr(value) in str(raised.value)
    assert KEYS[key].allowed in str(raised.value)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_one_checkpoint_at_a_time_is_the_only_number(number: int) -> None:
    """Scenario 25: no conf and no option makes a query take several checkpoints at once."""
    given = {f"{CHECKPOINTING}max-concurrent-checkpoints": str(number)}
    for conf, options in ((given, {}), ({}, given)):
        with pytest.raises(ConfigurationError, match="unknown setting"):
            read_settings(conf, options)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("spark.ckpt.", None),
        (f"{INTERVAL}s", INTERVAL),
        ("spark.ckpt.state.backend", BACKEND),
        ("spark.ckpt.state.backend.Type", BACKEND),
        (f"{CHECKPOINTING}timeuot", f"{CHECKPOINTING}timeout"),
        (f"{CHECKPOINTING}retention", f"{CHECKPOINTING}externalized-checkpoint-retention"),
        (f"{CHECKPOINTING}unaligned", None),
        (f"{CHECKPOINTING}mode", None),
    ],
)
def test_an_unknown_key_is_named_with_what_it_may_mean_and_all(key: str, meant: str | None) -> None:
    for conf, options in (({key: "1"}, {}), ({}, {key: "1"})):
        with pytest.raises(ConfigurationError) as raised:
            read_settings(conf, options)
        assert repr(key) in str(raised.value)
        said, _, named = str(raised.value).partition("use one of ")
        assert set(named.split(", ")) == {each.key for each in SETTINGS}
        assert said.endswith("): " if meant is None else f"perhaps {meant} is meant; ")


def test_options_of_the_library_are_separated_from_others() -> None:
    assert is_ckpt_option(BACKEND)
    assert is_ckpt_option("spark.ckpt.unknown")
    assert not is_ckpt_option("checkpointLocation")
    assert not is_ckpt_option("spark.ckptx")


def test_a_properties_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "some.conf"
    path.write_text(
        "# a comment\n! another\n\n  \n"
        "spark.master local[2]\n"
        f"{BACKEND}=heap\n"
        f"  {INTERVAL} : 5s  \n"
        "spark.app.name\tTwo words = one value # ä\n",
        encoding="utf-8",
    )
    assert read_conf_file(path) == {
        "spark.master": "local[2]",
        BACKEND: "heap",
        INTERVAL: "5s",
        "spark.app.name": "Two words = one value # ä",
    }
    assert read_conf_file(str(path)) == read_conf_file(path)


@pytest.mark.parametrize("line", ["alone", "=value", ": value"])
def test_a_line_that_is_no_pair_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "some.conf"
    path.write_text(f"# first\n\n{line}\n")
    with pytest.raises(ConfigurationError, match=rf"{path}, line 3: '{line}'"):
        read_conf_file(path)


@pytest.mark.parametrize("line", [f"{BACKEND} hashmap", "spark.ckpt.typo 1", f"{INTERVAL}="])
def test_a_file_with_a_mistake_is_refused_as_a_whole(tmp_path: Path, line: str) -> None:
    path = tmp_path / "some.conf"
    path.write_text(f"spark.master local\n{line}\n")
    with pytest.raises(ConfigurationError, match=r"spark\.ckpt\."):
        read_conf_file(path)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "conf").glob("*.conf")))
def test_every_file_in_conf_is_good(path: Path) -> None:
    values = read_conf_file(path)
    assert (values == {}) == (path == write_settings.CONF), "all.conf sets nothing as it stands"


@pytest.mark.parametrize("setting", KEYS.values(), ids=KEYS)
def test_the_documented_default_is_the_default(setting: Setting) -> None:
    default = getattr(Settings(), setting.field)
    assert default == (None if setting.default is None else setting.read(setting.default))


def test_every_field_has_one_setting() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)} - {
        "given"
    }  # where they are from
    assert sorted(each.field for each in KEYS.values()) == sorted(fields)
    assert len(SETTINGS) + len(INTERNAL_SETTINGS) == len(KEYS)


def test_the_page_and_the_annotated_file_say_what_the_list_says() -> None:
    """Run ``make pages`` after a change of the list."""
    assert write_settings.page(write_settings.PAGE.read_text()) == write_settings.PAGE.read_text()
    assert write_settings.conf() == write_settings.CONF.read_text()


def test_the_annotated_file_sets_what_is_uncommented(tmp_path: Path) -> None:
    """A user only has to remove the comment sign of a line."""
    lines = write_settings.CONF.read_text().splitlines()
    keys = [line for line in lines if line.startswith("#spark.")]
    assert len(keys) == len(SETTINGS)
    usable = [line[1:] for line in keys if not line.endswith(">")]
    (tmp_path / "all.conf").write_text("\n".join(usable))
    values = read_conf_file(tmp_path / "all.conf")
    assert read_settings(values, {}) == Settings()
    assert set(values) == {each.key for each in SETTINGS if each.default is not None}
