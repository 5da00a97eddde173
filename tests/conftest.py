"""One Spark session for all tests that can share it."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pytest
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.servers`, however pytest began

from pyspark_ckpt.local_files.conf import local_files_conf
from tests.servers.azure import CONTAINER, azure_server
from tests.servers.gs import gs_jars
from tests.servers.hdfs import Hdfs, hdfs_server
from tests.servers.kubernetes_api import ConfigMaps, kubernetes_api
from tests.servers.s3 import BUCKET, s3_server
from tests.servers.s3a import s3a_jars
from tests.servers.zookeeper import zookeeper_server

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
ROOM_BYTES = 8 << 30  # some three times what all tests use
MEMORY_DISK = Path("/dev/shm")
if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > ROOM_BYTES:
    # Thousands of synced files take no time there, nor do the directories of thousands of backends.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    if "TMPDIR" not in os.environ:  # also of the processes that run the tests, and of programs
        for left in MEMORY_DISK.glob("pyspark_ckpt-tests-*-"):  # by a process that was killed
            if not Path(f"/proc/{left.name.split('-')[2]}").exists():
                shutil.rmtree(left, ignore_errors=True)
        os.environ["TMPDIR"] = str(MEMORY_DISK / f"pyspark_ckpt-tests-{os.getpid()}-")
        Path(os.environ["TMPDIR"]).mkdir(mode=0o700, exist_ok=True)
        tempfile.tempdir = None  # pytest has asked already
        atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)

# Tests are short: the JVM's second compiler would take more than it ever gives back. What the first
# one makes outgrows its room by far, and would be thrown away and made again (measured). Hadoop
# starts a process for each permission and link that it looks at, some fifty of them in an epoch.
JAVA_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m", "-XX:+UseSerialGC"]
if "TMPDIR" in os.environ:
    JAVA_OPTIONS.append(f"-Djava.io.tmpdir={os.environ['TMPDIR']}")
if sys.platform == "linux":
    JAVA_OPTIONS.append("-Djdk.lang.Process.launchMechanism=VFORK")
CLASSES = Path(sys.prefix) / "share" / "spark-classes.jsa"
if CLASSES.exists():  # `make test` has made it
    # A JVM that is not Spark's would warn that it cannot use them.
    JAVA_OPTIONS += [f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:cds=off,cds+dynamic=off"]
os.environ.setdefault("JAVA_TOOL_OPTIONS", " ".join(JAVA_OPTIONS))
# Code made for a few rows takes longer to compile than to do without, in all programs of tests.
NO_CODEGEN = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SUBMITTED = [f"--conf {key}={value}" for key, value in NO_CODEGEN.items()]
HADOOP_DEFAULTS = CLASSES.with_name("hadoop-defaults.jar")
if HADOOP_DEFAULTS.exists():  # the archive of classes goes with it
    SUBMITTED.append(f"--driver-class-path {HADOOP_DEFAULTS}")
    SUBMITTED.append(f"--conf spark.executor.extraClassPath={HADOOP_DEFAULTS}")
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", " ".join([*SUBMITTED, "pyspark-shell"]))

# The processes for permissions and links took a sixth of the time of tests with queries. Separate
# programs have Hadoop's classes, as most users do.
NO_PROCESSES = local_files_conf()


def pytest_configure(config: pytest.Config) -> None:
    """Give Spark the jars of S3A and Google for tests of such locations, not the class archive."""
    wanted = config.getoption("markexpr")
    if "external" not in wanted or "not external" in wanted:
        return
    jars: list[Path] = []
    for jars_of in (s3a_jars, gs_jars):
        with suppress(pytest.skip.Exception):  # its tests will be skipped, with the reason
            jars += jars_of()
    _submit_with(":".join(map(str, jars)))


def _submit_with(jars: str) -> None:
    submitted = [f"--conf {key}={value}" for key, value in NO_CODEGEN.items()]
    submitted += [f"--driver-class-path {jars}", f"--conf spark.executor.extraClassPath={jars}"]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*submitted, "pyspark-shell"])


# They compare with what PySpark has from 4.2 on.
collect_ignore = (
    []
    if find_spec("pyspark.sql.streaming.tws_tester")
    else [
        "unit/values/test_pandas.py",
        "unit/testing/test_contract.py",
    ]
)

# A signal in the middle of a call to the JVM leaves an answer that the next call would read; then
# every later test fails. Among other processes this one ends instead, and another takes over.
TIME_LIMIT_METHOD = "thread" if "PYTEST_XDIST_WORKER" in os.environ else "signal"

PARALLELISM = 2
WORKERS = Path(__file__).with_name("workers")


TIME_LIMIT_S = 300
"""Of a test, with its fixtures; on a busy machine the longest take a tenth of it."""

OWN_JVM_TIME_LIMIT_S = 540
SOAK_TIME_LIMIT_S = 3600

SOAK_NOTEBOOKS = {"02_fork_from_savepoint.ipynb", "03_state.ipynb"}
"""They are left to `make soak`."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests first that start their own drivers, as notebooks do: they take longest.

    Where one process runs all tests, a signal ends one beyond its limit, and the next begins. The
    signal reaches a test that waits for the JVM, but none that hangs in native code or while it
    ends. There the traceback of all threads is written after `faulthandler_timeout`, and the
    process ends.
    """
    seen: set[str] = set()
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.own_jvm)
            if item.path.name in SOAK_NOTEBOOKS:
                item.add_marker(pytest.mark.soak)
        function = item.nodeid.partition("[")[0]
        if item.get_closest_marker("soak_variants") and function in seen:
            item.add_marker(pytest.mark.soak)
        seen.add(function)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_time_limit_s(item), method=TIME_LIMIT_METHOD))
    items.sort(key=lambda item: item.get_closest_marker("own_jvm") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give the handler of ``caplog`` its format back.

    PySpark's loggers set a format of their own on each handler that is added to them.
    """
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    plugin.caplog_handler.setFormatter(plugin.formatter)


def _time_limit_s(item: pytest.Item) -> int:
    if item.get_closest_marker("soak") or item.get_closest_marker("external"):
        return SOAK_TIME_LIMIT_S
    is_own_jvm = item.get_closest_marker("own_jvm") is not None
    return OWN_JVM_TIME_LIMIT_S if is_own_jvm else TIME_LIMIT_S


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; a task may fail three times before its query does."""
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("pyspark_ckpt tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", PARALLELISM)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))
        .config("spark.sql.session.timeZone", "UTC")
        .config(map=NO_CODEGEN | NO_PROCESSES)
        .config("spark.python.daemon.module", "preloaded_daemon")
        .config("spark.executorEnv.PYTHONPATH", str(WORKERS))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """What a process needs to reach the S3 server, which has one bucket; set in this one."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", use_listings_cache=False).mkdir(BUCKET)
        yield environment


@pytest.fixture(scope="session")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a ZooKeeper server."""
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """A real NameNode and DataNode."""
    with hdfs_server(tmp_path_factory.mktemp("hdfs") / "servers") as hdfs:
        yield hdfs


@pytest.fixture(scope="session")
def azure_environment() -> Iterator[dict[str, str]]:
    """What a process needs to reach Azurite, which has one container; set in this one."""
    from azure.storage.blob import BlobServiceClient

    with azure_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        connection = environment["AZURE_STORAGE_CONNECTION_STRING"]
        BlobServiceClient.from_connection_string(connection).create_container(CONTAINER)
        yield environment


@pytest.fixture
def azure_url(azure_environment: dict[str, str]) -> str:
    """A directory of the test's own in the container."""
    return f"az://{CONTAINER}/{secrets.token_hex(8)}"


@pytest.fixture(scope="session")
def gcs_environment() -> Iterator[dict[str, str]]:
    """What a process needs to reach fake-gcs-server, which has one bucket; set in this one."""
    from tests.servers.gcs import gcs_server

    with gcs_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture
def gcs_url(gcs_environment: dict[str, str]) -> str:
    """A directory of the test's own in the bucket."""
    return f"gs://{CONTAINER}/{secrets.token_hex(8)}"


@pytest.fixture
def hdfs_url(hdfs: Hdfs) -> str:
    """A directory of the test's own in HDFS."""
    return f"{hdfs.url}/{secrets.token_hex(8)}"


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfigMaps]:
    """The ConfigMaps of a stub of Kubernetes' API, which the environment names."""
    config_maps, kubeconfig = ConfigMaps(), tmp_path / "kubeconfig"
    with kubernetes_api(config_maps, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield config_maps


@pytest.fixture
def s3_url(s3_environment: dict[str, str]) -> str:
    """A directory of the test's own in the bucket."""
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"
