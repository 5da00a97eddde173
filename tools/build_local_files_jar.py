"""Build the jar of ``pyspark_ckpt/local_files``: ``python -m tools.build_local_files_jar``.

The same sources and the same Java give the same bytes: the files of the jar are sorted, are not
compressed and have no time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from pyspark_ckpt.local_files.conf import JAR

SOURCES = JAR.parent / "java"
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16


def main(jar: Path = JAR) -> None:
    """Compile the sources and write the jar."""
    hadoop = next(Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar"))
    with tempfile.TemporaryDirectory() as directory:
        command = ["javac", "--release", "17", "-g:none", "-Xlint:-deprecation", "-d", directory]
        sources = sorted(map(str, SOURCES.rglob("*.java")))
        subprocess.run([*command, "-cp", str(hadoop), *sources], check=True)  # noqa: S603
        with zipfile.ZipFile(jar, "w") as file:
            _add(file, "META-INF/MANIFEST.MF", b"Manifest-Version: 1.0\r\n\r\n")
            for path in sorted(Path(directory).rglob("*.class")):
                _add(file, path.relative_to(directory).as_posix(), path.read_bytes())


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _NO_TIME)
    entry.external_attr = _MODE
    file.writestr(entry, data)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else JAR)
