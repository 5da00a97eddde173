"""Who may see the console, what a browser may do with it, and which addresses lead nowhere."""

from __future__ import annotations

import base64
import re
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path

import msgspec
import pytest
from flask.testing import FlaskClient

from pyspark_ckpt.console.data.bundle import MOST_FILES, unpack_bundle, write_bundle
from pyspark_ckpt.console.data.places import find_places, key_of
from pyspark_ckpt.console.opening import open_server
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Segment
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.run_log import RunEnded, RunLog, RunStarted, SettingInForce
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.servers.chromium import chromium

LOCAL = "http://127.0.0.1:8270"
HOSTILE = "\"><script>alert('x')</script><img src=x onerror=alert(1)>{{ 7*7 }}"


KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'


@pytest.fixture
def snapshot(snapshot: CheckpointMetadata) -> CheckpointMetadata:
    """The shared snapshot with a schema that Spark can read, and without states."""
    operators = tuple(
        msgspec.structs.replace(
            operator,
            key_schema=KEY,
            handles=tuple(
                msgspec.structs.replace(handle, key_schema=KEY, states=())
                for handle in operator.handles
            ),
        )
        for operator in snapshot.operators
    )
    return msgspec.structs.replace(snapshot, operators=operators)


@pytest.fixture
def root(tmp_path: Path, snapshot: CheckpointMetadata) -> LocalStorage:
    """A location with a checkpoint, whose names and texts are hostile."""
    checkpoints = LocalStorage(tmp_path / "all" / "location" / "pyspark_ckpt")
    metadata = msgspec.structs.replace(
        snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, root="..", query_name=HOSTILE
    )
    CompletedCheckpoints(checkpoints).add(1, metadata)
    log = RunLog(checkpoints)
    setting = SettingInForce(HOSTILE, HOSTILE, HOSTILE)
    log.write(
        RunStarted(
            run_id="r", at_ms=5, query_id=HOSTILE, query_name=HOSTILE, started_by=HOSTILE,
            location="javascript:alert(1)", settings=(setting,),
        )
    )  # fmt: skip
    log.write(RunEnded(run_id="r", at_ms=6, error=HOSTILE, error_kind=HOSTILE))
    return LocalStorage(tmp_path / "all")


@contextmanager
def served(root: LocalStorage) -> Iterator[str]:
    """Serve a directory to other hosts too; yields an address on this one."""
    server, url = open_server(root, host="0.0.0.0", port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield url.replace("0.0.0.0", "127.0.0.1")
    finally:
        server.close()


@pytest.fixture
def client(root: LocalStorage) -> FlaskClient:
    return make_app(root).test_client()


def addresses(client: FlaskClient) -> list[str]:
    start = client.get("/", base_url=LOCAL).text
    (key,) = set(re.findall(r"/q/([0-9a-f]{16})/", start))
    tabs = ("", "chk/1/", "state", "settings", "plan", "files")
    return ["/", *(f"/q/{key}/{tab}" for tab in tabs)]


def test_names_and_texts_of_files_are_shown_and_not_run(client: FlaskClient) -> None:
    shown = 0
    for address in addresses(client):
        answer = client.get(address, base_url=LOCAL)
        assert answer.status_code == 200, address
        assert "<script" not in answer.text, address
        assert "<img" not in answer.text, address
        assert not re.search(r"<[^>]*\sonerror=", answer.text.replace("&#34;", "")), address
        assert "javascript:" not in answer.text, address
        shown += "&lt;script&gt;" in answer.text
    assert shown >= 4, "the texts are there, escaped"


def test_an_expression_in_a_name_is_not_evaluated(client: FlaskClient) -> None:
    assert "{{ 7*7 }}" in client.get("/", base_url=LOCAL).text


def test_a_browser_may_load_and_run_nothing_of_others(client: FlaskClient) -> None:
    for address in (*addresses(client), "/nowhere", "/static/console.css"):
        headers = client.get(address, base_url=LOCAL).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'"), address
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_pages_name_no_asset_of_the_internet(client: FlaskClient) -> None:
    for address in addresses(client):
        text = client.get(address, base_url=LOCAL).text
        assert not re.findall(r'(?:src|href|action)="(?!/|#)', text), address


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "[::2]", "10.0.0.1:8270"]
)
def test_a_name_that_only_points_to_loopback_is_refused(client: FlaskClient, host: str) -> None:
    assert client.get("/", base_url=f"http://{host}").status_code == 403


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8270"])
def test_names_of_loopback_are_served(client: FlaskClient, host: str) -> None:
    assert client.get("/", base_url=f"http://{host}").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_console_only_reads(client: FlaskClient, method: str) -> None:
    assert client.open("/", method=method, base_url=LOCAL).status_code == 405


@pytest.mark.parametrize(
    "address",
    [
        "/q/../../etc/passwd", "/q/%2e%2e/", "/q/0000000000000000/", "/s/0000000000000000/",
        "/s/..%2f..%2fetc/", "/static/../server.py", "/static/%2e%2e/pages.py",
        "/q/{key}/chk/-1/", "/q/{key}/chk/999/", "/q/{key}/chk/..%2f1/",
        "/q/{key}/plan?from=/etc", "/q/{key}/plan?from=s-../..",
    ],
)  # fmt: skip
def test_an_address_names_no_path(client: FlaskClient, root: LocalStorage, address: str) -> None:
    key = key_of(root.url_of("location/pyspark_ckpt"))
    assert client.get(address.replace("{key}", key), base_url=LOCAL).status_code == 404


def test_elsewhere_a_token_is_needed_and_kept_in_a_cookie(root: LocalStorage) -> None:
    client = make_app(root, host="0.0.0.0", token="right").test_client()
    there = "http://10.1.2.3:8270"
    for address in ("/", "/?token=", "/?token=wrong", "/?token=%C3%A4", "/static/console.css"):
        assert client.get(address, base_url=there).status_code == 403, address
    client.set_cookie("pyspark_ckpt_token_8270", "wrong", domain="10.1.2.3")
    assert client.get("/", base_url=there).status_code == 403
    answer = client.get("/?token=right", base_url=there)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert client.get("/", base_url=there).status_code == 200


def test_two_consoles_of_one_host_each_have_their_own_cookie(root: LocalStorage) -> None:
    opener = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(CookieJar(DefaultCookiePolicy()))
    )
    with served(root) as first, served(root) as second:
        for url in (first, second):
            assert opener.open(url, timeout=60).status == 200
        for url in (first, second):
            assert opener.open(url.partition("?")[0], timeout=60).status == 200


@pytest.mark.parametrize(
    ("asked", "led_to"),
    [
        ("/q/0/state?token=right&operator=a%26b&key=x&key=%C3%A4",
         "/q/0/state?operator=a%26b&key=x&key=%C3%A4"),
        ("/q/0/plan?from=s-1&token=right&drop=1", "/q/0/plan?from=s-1&drop=1"),
        ("/%2Felsewhere.example/?token=right", "/elsewhere.example/"),
    ],
)  # fmt: skip
def test_an_address_with_a_token_leads_to_the_same_page(
    root: LocalStorage, asked: str, led_to: str
) -> None:
    client = make_app(root, host="0.0.0.0", token="right").test_client()
    answer = client.get(asked, base_url="http://10.1.2.3:8270")
    assert (answer.status_code, answer.headers["Location"]) == (302, led_to)


@pytest.mark.slow
def test_a_link_on_a_page_of_another_site_leads_to_the_console(
    root: LocalStorage, tmp_path: Path
) -> None:
    """In a real browser, whose rules for cookies count: such as from a wiki, with the token."""
    with served(root) as url, chromium() as browser:
        (tmp_path / "wiki.html").write_text(f'<a href="{url}">console</a>')
        page = browser.new_page()
        page.goto((tmp_path / "wiki.html").as_uri())
        page.click("a")
        page.wait_for_selector("table#queries")
        page.goto((tmp_path / "wiki.html").as_uri())
        page.evaluate("link => document.querySelector('a').href = link", url.partition("?")[0])
        page.click("a")
        page.wait_for_selector("table#queries")


def test_a_server_elsewhere_has_a_token_of_its_own(root: LocalStorage) -> None:
    tokens = set()
    for _ in range(2):
        server, url = open_server(root, host="0.0.0.0", port=0)
        server.close()
        tokens.add(url.partition("?token=")[2])
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 43
    server, url = open_server(root, host="127.0.0.1", port=0)
    server.close()
    assert "token" not in url


def test_a_damaged_checkpoint_is_shown_as_a_problem(root: LocalStorage) -> None:
    path = Path(root.url) / "location" / "pyspark_ckpt" / "chk-1" / "_metadata"
    path.write_bytes(path.read_bytes()[:-5])
    client = make_app(root).test_client()
    assert "checksum" in client.get("/", base_url=LOCAL).text or "bytes of JSON" in (
        client.get("/", base_url=LOCAL).text
    )
    key = key_of(root.url_of("location/pyspark_ckpt"))
    answer = client.get(f"/q/{key}/chk/1/", base_url=LOCAL)
    assert answer.status_code == 503
    assert "cannot be shown" in answer.text


def test_a_bundle_has_what_pages_show_and_no_data(
    root: LocalStorage, tmp_path: Path, snapshot: CheckpointMetadata
) -> None:
    checkpoints = root.child("location/pyspark_ckpt")
    (operator, *others) = snapshot.operators
    handles = tuple(
        msgspec.structs.replace(
            handle,
            sweep_from=b"SECRETKEY",
            segments=(Segment("v", 1, 1, 9, inline=b"SECRETVAL"),),
        )
        for handle in operator.handles
    )
    metadata = msgspec.structs.replace(
        snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=2, root="..",
        operators=(msgspec.structs.replace(operator, handles=handles), *others),
    )  # fmt: skip
    CompletedCheckpoints(checkpoints).add(2, metadata)
    path = tmp_path / "some.bundle"
    write_bundle(root, find_places(root), path)
    with zipfile.ZipFile(path) as file:
        content = b"".join(map(file.read, file.namelist()))
    assert b"SECRET" not in content
    assert base64.b64encode(b"SECRETVAL") not in content
    assert base64.b64encode(b"SECRETKEY") not in content
    unpack_bundle(str(path), tmp_path / "unpacked")
    client = make_app(LocalStorage(tmp_path / "unpacked"), bundle=str(path)).test_client()
    start = client.get("/", base_url=LOCAL).text
    assert "without data" in start
    (key,) = set(re.findall(r"/q/([0-9a-f]{16})/", start))
    for tab in ("", "chk/2/", "chk/1/", "state", "settings", "plan", "files"):
        answer = client.get(f"/q/{key}/{tab}", base_url=LOCAL)
        assert answer.status_code == 200, (tab, answer.text)


def test_a_bundle_is_not_replaced(root: LocalStorage, tmp_path: Path) -> None:
    path = tmp_path / "some.bundle"
    write_bundle(root, find_places(root), path)
    with pytest.raises(FileExistsError):
        write_bundle(root, find_places(root), path)


@pytest.mark.parametrize(
    "name",
    ["../outside", "/etc/outside", "queries/0/../../outside", "queries/0/a/b/c/d/e", "outside"],
)
def test_a_hostile_bundle_writes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.bundle"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("bundle.json", '{"version": 1, "root": "x", "made_at_ms": 1}')
        file.writestr(name, b"x")
    with pytest.raises(CorruptFileError, match="not a name of a bundle"):
        unpack_bundle(str(path), tmp_path / "in" / "unpacked")
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize("index", ['{"version": 99, "root": "x"}', "{", None])
def test_a_file_that_is_no_bundle_of_this_version_is_refused(
    tmp_path: Path, index: str | None
) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as file:
        if index is not None:
            file.writestr("bundle.json", index)
    with pytest.raises(CorruptFileError):
        unpack_bundle(str(path), tmp_path / "unpacked")


@pytest.mark.parametrize("cut", [slice(1, None), slice(0, -1), slice(0, 40), slice(0, 0)])
def test_a_damaged_bundle_is_refused(root: LocalStorage, tmp_path: Path, cut: slice) -> None:
    path = tmp_path / "some.bundle"
    write_bundle(root, find_places(root), path)
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(CorruptFileError, match="is not a bundle"):
        unpack_bundle(str(path), tmp_path / "unpacked")


def test_a_bundle_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.console.data.bundle.MOST_FILES", 1)
    path = tmp_path / "large.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("bundle.json", '{"version": 1, "root": "x", "made_at_ms": 1}')
        file.writestr("queries/0/_rolled_back.json", b"")
    assert MOST_FILES > 1
    with pytest.raises(CorruptFileError, match="too large"):
        unpack_bundle(str(path), tmp_path / "unpacked")
