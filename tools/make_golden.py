"""Makes the golden data of a format: ``python -m tools.make_golden FORMAT``.

Each version of PySpark writes its own archives, in a separate environment
(``tools/environments.py``), into ``tests/golden/FORMAT``. The newest version also writes the rest.
What is there already is left alone.
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
    parser.add_argument("format", help="of what this library stores; its golden data's directory")
    parser.add_argument("--pyspark", nargs="+", default=VERSIONS, help="versions that write")
    arguments = parser.parse_args()
    target = ROOT / "tests" / "golden" / arguments.format
    for version in arguments.pyspark:
        python = environment(version)
        of_version = ["tests.golden.make"] if version == VERSIONS[-1] else []
        for program in ("tests.golden.make_archives", *of_version):
            subprocess.run(  # noqa: S603
                [python, "-m", program, target],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)},
                check=True,
            )


if __name__ == "__main__":
    main()
