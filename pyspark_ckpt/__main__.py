"""``python -m pyspark_ckpt``, the same as the command ``pyspark-ckpt``."""

from __future__ import annotations

import sys

from pyspark_ckpt.cli.main import main

sys.exit(main())
