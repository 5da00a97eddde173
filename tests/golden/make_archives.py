"""Makes golden data of the installed PySpark: ``python -m tests.golden.make_archives DIRECTORY``.

Writes one archive for each backend: a ``checkpointLocation`` with retained checkpoints, savepoints
of it in both formats, the next input, and what the query must then emit. An archive that exists is
left alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark import cloudpickle

from tests.golden import program
from tests.golden.archives import pack
from tests.golden.make import expected, make_whole
from tests.golden.session import golden_session


def main(target: Path) -> None:
    cloudpickle.register_pickle_by_value(program)
    wanted = {
        backend: target / f"pyspark-{pyspark.__version__}-{backend}.tar.xz"
        for backend in ("rocksdb", "heap")
    }
    missing = {backend: path for backend, path in wanted.items() if not path.exists()}
    if not missing:
        return
    with tempfile.TemporaryDirectory() as directory:
        spark = golden_session(directory)
        for backend, path in missing.items():
            made = Path(directory) / f"made-{backend}"
            base = Path(directory) / f"run-{backend}"
            make_whole(spark, base, backend, made / f"whole-{backend}", is_merged=True)
            (made / "expected.json").write_text(json.dumps(expected(), indent=0) + "\n")
            pack(made, path)
            print(f"{path.name}: {path.stat().st_size} bytes")
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
