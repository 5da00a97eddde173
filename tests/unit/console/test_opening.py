"""A console in a separate process."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.console.opening import LOOPBACK, open_console
from pyspark_ckpt.console.serving import NICENESS
from pyspark_ckpt.errors import CkptError, ConfigurationError

pytestmark = pytest.mark.slow

HOLDER = """
import sys
from pyspark_ckpt.console.opening import LOOPBACK, open_console
print(open_console(sys.argv[1], host=LOOPBACK, port=0).url, flush=True)
sys.stdin.read()
"""


def server_of(url: str) -> int:
    """Return the id of the process that listens at the port of a console."""
    port = urlsplit(url).port
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(each.laddr.port == port for each in process.net_connections()):
                return process.pid
    raise AssertionError(f"nobody listens at {url}")


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_a_console_has_a_process_with_the_lowest_priority_until_it_is_closed(
    tmp_path: Path,
) -> None:
    console = open_console(str(tmp_path), host=LOOPBACK, port=0)
    process = server_of(console.url)
    assert process != os.getpid()
    assert os.getpriority(os.PRIO_PROCESS, process) == NICENESS
    group = Path(f"/proc/{process}/autogroup")  # it has its own session
    assert not group.exists() or group.read_text().endswith(f" nice {NICENESS}\n")
    assert "no query" in page(console.url)
    console.close()
    assert not Path(f"/proc/{process}").exists()
    console.close()


def test_a_console_ends_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    url = driver.stdout.readline().strip()
    assert "no query" in page(url)
    server = os.pidfd_open(server_of(url))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    ended, _, _ = select.select([server], [], [], 60)
    assert ended


def test_waiting_for_a_console_whose_process_dies_is_an_error(tmp_path: Path) -> None:
    console = open_console(str(tmp_path), host=LOOPBACK, port=0)
    os.kill(server_of(console.url), signal.SIGKILL)
    with pytest.raises(CkptError, match="exit code -9"):
        console.wait()
    console.close()


def test_waiting_for_a_console_ends_when_it_is_closed(tmp_path: Path) -> None:
    console = open_console(str(tmp_path), host=LOOPBACK, port=0)
    console.close()
    console.wait()


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            open_console(str(tmp_path), host=LOOPBACK, port=taken.getsockname()[1])


def test_a_host_that_nobody_knows_is_an_error_that_names_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen at 'nosuch\.host\.invalid'"):
        open_console(str(tmp_path), host="nosuch.host.invalid", port=0)
    assert capfd.readouterr().err == ""


def test_a_directory_that_cannot_be_opened_is_an_error_that_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigurationError, match="foo:// is not supported"):
        open_console("foo://bar/x", host=LOOPBACK, port=0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing", "there is no .*missing: give a query's"),
        ("memory://of-no-query/x", "there is no memory://of-no-query/x: give"),
        ("foo://bar/x", "foo:// is not supported"),
        ("cut.bundle", "cut.bundle is not a bundle of pyspark_ckpt"),
        ("notes.txt", "notes.txt is not a bundle of pyspark_ckpt"),
    ],
)
def test_what_cannot_be_shown_is_not_served(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], path: str, why: str
) -> None:
    with zipfile.ZipFile(tmp_path / "cut.bundle", "w") as file:
        file.writestr("bundle.json", '{"version": 1, "root": "x"}')
    (tmp_path / "cut.bundle").write_bytes((tmp_path / "cut.bundle").read_bytes()[:-9])
    (tmp_path / "notes.txt").write_text("no bundle")
    given = path if "://" in path else str(tmp_path / path)
    assert main(["ui", given, "--port", "0"]) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert re.match(rf"pyspark-ckpt: .*{why}", printed.err)
    assert "Traceback" not in printed.err


def test_a_missing_library_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flask.py").write_text("raise ImportError('no flask')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pyspark_ckpt\[ui\]"):
        open_console(str(tmp_path), host=LOOPBACK, port=0)
