"""The files that Spark's file sources have read, by their logs, and which of them are gone.

A file source lists the files that exist. It does not miss a file that was there once, so the rows
of such a file are left out when a query goes back to an epoch before it. Driver only.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.log import COMPACT, numbered
from pyspark_ckpt.storage.open import Storage, local_path

logger = library_logger(__name__)

_FEW = 8
"""So many files of one directory are asked for one by one, rather than by a list of all."""

_AT_ONCE = 16
_NO_SUCH_PATH = "PATH_NOT_FOUND"
_NOT_THERE = "java.io.FileNotFoundException"
_GLOB_SIGN = re.compile(r"([\\{}\[\]*?])")


class ReadFile(msgspec.Struct, frozen=True):
    """A line in a file source's log: the file's URL, and when it was last modified.

    A source reads a file again that was modified since.
    """

    path: str
    timestamp: int = 0


_decoder = msgspec.json.Decoder(ReadFile)


class CannotLookError(Exception):
    """A directory of a source that cannot be listed; the text names it, and says why."""


def files_read(location: Storage) -> dict[str, set[ReadFile]]:
    """Return the files that the sources of a location have read, by the name of the source.

    An epoch that began and was not committed counts. A log that cannot be read is left out, with a
    warning: a rollback is the way to mend it.
    """
    found = {}
    for name in location.list("sources"):
        directory = f"sources/{name}"
        files = _files_of(location, directory, location.list(directory))
        if files:
            found[name] = files
    return found


def files_in_log(data: bytes) -> tuple[set[ReadFile], bool]:
    """Return the files that a file of a source's log names, and whether all of it can be read.

    There is none in the logs of other sources.
    """
    lines = data.partition(b"\n")[2]
    try:
        return set(_decoder.decode_lines(lines)), True
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = [_file_in(line) for line in lines.split(b"\n") if line]
        return {file for file in found if file is not None}, None not in found


def _file_in(line: bytes) -> ReadFile | None:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _files_of(location: Storage, directory: str, names: Iterable[str]) -> set[ReadFile]:
    """Return the files in a log: those of its newest whole compaction and of the entries after."""
    found: set[ReadFile] = set()
    damaged = []
    numbers = numbered(names)
    # The newest first, and a compaction before the entry that it replaces.
    for name in sorted(numbers, key=lambda name: (numbers[name], name), reverse=True):
        path = f"{directory}/{name}"
        try:
            data = location.read(path)
        except FileNotFoundError:  # Spark has deleted it, because a compaction has all of it
            continue
        except (OSError, CkptError):
            damaged.append(path)
            continue
        files, is_whole = files_in_log(data)
        found |= files
        if not is_whole or not data.startswith(b"v"):
            damaged.append(path)
        elif name.endswith(COMPACT):
            break
    if found and damaged:  # else it is the log of another source
        logger.warning(
            "%s cannot be read: whether the input files that it names are gone is not known",
            ", ".join(map(location.url_of, damaged)),
        )
    return found


def gone(spark: SparkSession, files: Collection[str]) -> list[str]:
    """Return the files that do not exist, sorted.

    Directories are listed, and several of them at once, because one may have many of the files.

    ``CannotLookError`` is raised if a directory cannot be listed.
    """
    wanted: dict[str, dict[str, str]] = defaultdict(dict)
    for file in files:
        directory, _, name = file.rpartition("/")
        wanted[directory][unquote(name)] = file
    look = _looking(spark)
    with ThreadPoolExecutor(_AT_ONCE, "pyspark_ckpt input") as pool:
        there = pool.map(lambda each: look(each, wanted[each].keys()), wanted)
        return sorted(
            of[name]
            for of, names in zip(wanted.values(), there, strict=True)
            for name in of.keys() - names
        )


def _looking(spark: SparkSession) -> Callable[[str, Set[str]], set[str]]:
    """Return a function that returns the names in a directory, at least those that are wanted."""
    if not session_of(spark).has_jvm:
        is_here = connect.has_own_server()
        return lambda directory, _: (
            _local_names(directory)
            if is_here and directory.startswith("file:")
            else _names_at_server(spark, directory)
        )
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return lambda directory, wanted: (
        _local_names(directory)
        if directory.startswith("file:")
        else _names_in_java(spark, conf, directory, wanted)
    )


def _local_names(directory: str) -> set[str]:
    try:
        return set(os.listdir(local_path(f"{unquote(directory)}/")))  # noqa: PTH208  # many
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except (OSError, CkptError) as exc:
        raise CannotLookError(f"{unquote(directory)} cannot be listed ({exc})") from exc


def _names_in_java(spark: SparkSession, conf: Any, directory: str, wanted: Set[str]) -> set[str]:
    """Return names as Hadoop's file systems list them, in few calls of the JVM."""
    java: Any = spark._jvm
    hadoop = java.org.apache.hadoop.fs
    try:
        place = hadoop.Path(java.java.net.URI(f"{directory}/x")).getParent()
        file_system = place.getFileSystem(conf)
        if len(wanted) <= _FEW:
            return {name for name in wanted if file_system.exists(hadoop.Path(place, f"./{name}"))}
        paths = hadoop.FileUtil.stat2Paths(file_system.listStatus(place))
        # Py4J would ask for each element.
        text = str(java.scala.runtime.ScalaRunTime.stringOf(paths))
        above = f"{str(file_system.makeQualified(place).toString()).rstrip('/')}/"
    except Py4JJavaError as exc:
        if exc.java_exception.getClass().getName() == _NOT_THERE:
            return set()
        why = str(exc.java_exception.toString())
        raise CannotLookError(f"{unquote(directory)} cannot be listed ({why})") from exc
    except PySparkException as exc:
        raise CannotLookError(f"{unquote(directory)} cannot be listed ({exc})") from exc
    inside = text.removeprefix("Array(").removesuffix(")")
    return set(inside.removeprefix(above).split(f", {above}"))


def _names_at_server(spark: SparkSession, directory: str) -> set[str]:
    """Return names as Spark's file sources list them, over Spark Connect."""
    pattern = _GLOB_SIGN.sub(r"\\\1", unquote(directory))
    reader = spark.read.format("text").option("recursiveFileLookup", "true")
    try:
        found = reader.load(pattern).inputFiles()
    except AnalysisException as exc:
        if exc.getCondition() == _NO_SUCH_PATH:
            return set()
        raise CannotLookError(f"{unquote(directory)} cannot be listed ({exc})") from exc
    except PySparkException as exc:
        raise CannotLookError(f"{unquote(directory)} cannot be listed ({exc})") from exc
    above = f"{directory}/"
    return {unquote(file[len(above) :]) for file in found if file.startswith(above)}


def differing(read: Mapping[str, set[ReadFile]], seen: Mapping[str, set[ReadFile]]) -> set[str]:
    """Return the URLs of files that were read and are not seen, each source by itself."""
    return {file.path for name, files in read.items() for file in files - seen.get(name, set())}
