"""What the tests of the site share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # for `tools`, however pytest began
