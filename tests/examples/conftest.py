"""What the tests of the examples share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # for `tests.by_value`, however pytest began
