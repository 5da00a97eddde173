"""The flights of ``examples.flights``, as a program for spark-submit: ``--weeks 4``."""

from __future__ import annotations

import sys

from examples.flights.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
