"""Makes the golden data of a release: ``python -m tools.make_golden VERSION``.

Each version of PySpark writes its own, in a separate environment (``tools/environments.py``),
into ``tests/golden/VERSION``. Archives that are checked in are never made again.
"""

from __future__ import annotations

import argparse
import os
import subprocess

from tools.environments import ROOT, environment

VERSIONS = ("4.0.5", "4.1.4", "4.3.0")


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("version", help="of this library; `unreleased` until it has one")
    parser.add_argument("--pyspark", nargs="+", default=VERSIONS, help="versions that write")
    arguments = parser.parse_args()
    target = ROOT / "tests" / "golden" / arguments.version
    for version in arguments.pyspark:
        python = environment(version)
        subprocess.run(  # noqa: S603
            [python, "-m", "tests.golden.make_archives", target],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)},
            check=True,
        )


if __name__ == "__main__":
    main()
