"""Writes a jar with the few of Hadoop's default settings that a Spark on local files asks for.

``python tools/small_hadoop_defaults.py JAR``: put first on the class path, it takes the place of
Hadoop's own 1,100. Spark sends all of them with every task, each compressed on its own: a quarter
of the JVM's work in an epoch of a few rows (measured). `make test` makes it once.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pyspark

NEEDED = re.compile(
    r"io\.|file\.|hadoop\.tmp\.dir|hadoop\.security\.(auth|group)"
    r"|fs\.(AbstractFileSystem\.)?(file|har|local|default|permissions)"
)
REPLACED = ("core-default.xml", "yarn-default.xml", "mapred-default.xml")


def main(jar: Path) -> None:
    """Write ``jar``, which appears when it is complete, from Spark's own Hadoop."""
    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    jar.parent.mkdir(parents=True, exist_ok=True)
    unfinished = jar.with_suffix(".new")
    with zipfile.ZipFile(hadoop) as defaults, zipfile.ZipFile(unfinished, "w") as small:
        for name in REPLACED:
            small.writestr(name, _needed(defaults.read(name)))
    unfinished.replace(jar)


def _needed(defaults: bytes) -> bytes:
    configuration = ET.fromstring(defaults)  # noqa: S314 - it came with Spark
    for setting in configuration.findall("property"):
        if not NEEDED.match(setting.findtext("name", "").strip()):
            configuration.remove(setting)
    return ET.tostring(configuration)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
