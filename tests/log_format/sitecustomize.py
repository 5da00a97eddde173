"""Lets what Python logs where nobody has set up logging name its level and its logger."""

from __future__ import annotations

import logging

if logging.lastResort is not None:
    logging.lastResort.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
