"""The commit that figures were measured at, which every file of results names."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_MEASURED = ("pyspark_ckpt", "state_backends")
"""What is measured; tools and results may have changes that are not committed."""


def measured_commit() -> str:
    """Return the short name of the commit that is run, and whether the library has changes."""
    commit = _git("rev-parse", "--short", "HEAD").stdout.strip()
    has_changes = _git("diff", "--quiet", "HEAD", "--", *_MEASURED).returncode == 1
    return f"{commit} with changes" if has_changes else commit


def measured_at() -> str:
    """Return the line that a page of figures has."""
    return f"Measured at commit `{measured_commit()}`."


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)  # noqa: S603
