"""Where the console listens: at each address of a name, with one port for all of them."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyspark_ckpt.console.opening import open_server
from pyspark_ckpt.storage.open import LocalStorage


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV4, IPV6, ELSEWHERE = "127.0.0.1", "::1", "203.0.113.7"


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ((IPV4, "127.0.0.2"), (IPV4, "127.0.0.2")),
        ((IPV4, IPV4), (IPV4,)),
        ((ELSEWHERE, IPV4), (IPV4,)),
        ((IPV4, ELSEWHERE), (IPV4,)),
        pytest.param(
            (IPV6, IPV4),
            (IPV6, IPV4),
            marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"),
        ),
    ],
)
def test_a_name_is_served_at_each_address_that_it_has_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
    there: tuple[str, ...],
) -> None:
    """Only the answer of the name's resolution is made up: it differs from machine to machine."""
    resolve: Any = socket.getaddrinfo

    def resolved(host: str, port: int | str | None, *others: Any, **named_others: Any) -> list[Any]:
        if host != "localhost":
            return list(resolve(host, port, *others, **named_others))
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in named]
        rest = [(0, 0) if ":" in each else () for each in named]
        return [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, int(port or 0), *more))
            for family, each, more in zip(families, named, rest, strict=True)
        ]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolved)
        server, url = open_server(LocalStorage(tmp_path), host="localhost", port=0)

    def run() -> None:
        with suppress(OSError):  # its sockets are closed at the end
            server.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert url == f"http://localhost:{urlsplit(url).port}/"
        for each in there:
            connection = HTTPConnection(each, urlsplit(url).port, timeout=60)
            connection.request("GET", "/", headers={"Host": urlsplit(url).netloc})
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        server.close()
        thread.join()


def test_an_address_of_another_machine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"cannot listen at {re.escape(ELSEWHERE)}, .*: give another"):
        open_server(LocalStorage(tmp_path), host=ELSEWHERE, port=0)


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server((IPV4, 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"{re.escape(IPV4)}, port {port} .*in use.*: give another host or port"
        with pytest.raises(OSError, match=message):
            open_server(LocalStorage(tmp_path), host=IPV4, port=port)


def test_an_address_of_ipv6_is_named_as_in_a_url(tmp_path: Path) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    for host in ("::1", "[::1]"):
        server, url = open_server(LocalStorage(tmp_path), host=host, port=0)
        server.close()
        assert re.fullmatch(r"http://\[::1\]:[0-9]+/", url)
