"""Everything is declared in setup.cfg, but the README as an index of packages shows it."""

import re
from pathlib import Path

from setuptools import setup

_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n+", re.MULTILINE)
_LINK_INTO_THE_PROJECT = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)[^)]*\)")


def description(readme: str) -> str:
    """Return the README without what only a checkout can show: pictures and links to files."""
    return _LINK_INTO_THE_PROJECT.sub(r"\1", _PICTURE.sub("", readme))


if __name__ == "__main__":
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=description(text))
