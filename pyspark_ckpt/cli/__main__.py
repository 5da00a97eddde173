"""``python -m pyspark_ckpt.cli``."""

from __future__ import annotations

import sys

from pyspark_ckpt.cli.main import main

sys.exit(main())
