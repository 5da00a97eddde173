"""A real headless Chromium: the one that is installed, else Debian's package, unpacked once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.installed import installed, run

_PACKAGE = "chromium-headless-shell"
_BINARY = "usr/lib/chromium/chromium-headless-shell"
_INSTALLED = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def _fill(directory: Path) -> None:
    """Download the package and what this system lacks for it, and unpack them."""
    listed = _needed(directory)
    if not listed:
        run(["apt-get", "update"], directory)
        listed = _needed(directory)
    if not listed:
        raise FileNotFoundError(f"Debian's package {_PACKAGE} is not known here")
    run(["apt-get", "download", *listed], directory)
    for package in sorted(directory.glob("*.deb")):
        run(["dpkg", "-x", package.name, "."], directory)
        package.unlink()


def _needed(directory: Path) -> list[str]:
    """Return the packages that an installation would add; nothing is installed."""
    simulated = subprocess.run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", _PACKAGE],
        cwd=directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return re.findall(r"^Inst (\S+)", simulated.stdout, re.MULTILINE)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser, as Playwright's ``Browser``; the test is skipped if there can be none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="NOT TESTED: the driver of the browser is not installed"
    )
    found = next(filter(None, map(shutil.which, _INSTALLED)), None)
    environment = dict(os.environ)
    if found is None:
        place = installed(_PACKAGE, _fill)
        found = str(place / _BINARY)
        libraries = sorted({str(path.parent) for path in place.rglob("*.so*")})
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found, env=environment, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()
