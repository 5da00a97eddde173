"""Serves the console: a Flask application on waitress, both without a build step or a service."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import waitress
from flask import Flask, abort, redirect, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.console.access import guard, is_loopback, new_token
from pyspark_ckpt.console.data.bundle import made_at_ms
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.glances import Glances
from pyspark_ckpt.console.data.places import Places, QueryPlace, find_places
from pyspark_ckpt.console.data.planned import plan_against
from pyspark_ckpt.console.data.queries import (
    QueryIdentity,
    identity_of,
    summary_of,
    summary_or_problem,
)
from pyspark_ckpt.console.data.slow_epochs import slowest_epoch, ways_back
from pyspark_ckpt.console.data.snapshots import (
    bundled_kept_files,
    checkpoint_page,
    kept_files,
    savepoint_page,
)
from pyspark_ckpt.console.data.states import KeyRequest, state_page
from pyspark_ckpt.console.data.timeline import timeline_of
from pyspark_ckpt.console.html import pages
from pyspark_ckpt.console.html.family import read_savepoints
from pyspark_ckpt.errors import CkptError, ConfigurationError
from pyspark_ckpt.formats.layout import checkpoint_name
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.history.run_log import RecordedRuns, RunStarted
from pyspark_ckpt.storage.open import Storage

_THREADS = 4
_TRIES = 8
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""The errors of an address that the machine does not have, such as one of IPv6 without IPv6."""

_FOUND_MS = 5000
"""For how long the places below the directory are known without a new search."""

_IDENTITIES_READ = 200
"""Queries whose ids are read, to link a query to the one that it was restored from."""

_CHECKPOINTS_TO_CHOOSE = 20
_QUERIES_TO_CHOOSE = 20


class _Directory:
    """The directory that is shown; searched again after a few seconds."""

    def __init__(self, root: Storage) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._found: Places | None = None
        self._found_ms = 0
        self._identities: dict[str, QueryIdentity | None] = {}
        self._keys_of: dict[str, str] = {}

    def places(self) -> Places:
        with self._lock:
            if self._found is None or monotonic_ms() - self._found_ms > _FOUND_MS:
                self._found = find_places(self._root)
                self._found_ms = monotonic_ms()
                self._identities = {}  # a rollback gives a query another id
            return self._found

    def query(self, key: str) -> QueryPlace:
        found = self.places().query(key)
        if found is None:
            abort(404, "there is no such query")
        return found

    def identity(self, query_id: str) -> QueryIdentity | None:
        """Return the query of an id; of each place, the id is read once for each search.

        The place where the id was before comes first, so that most often no other one is read.
        """
        queries = self.places().queries[:_IDENTITIES_READ]
        identities = self._identities  # of this search; another thread may begin the next one
        before = self._keys_of.get(query_id)
        for place in sorted(queries, key=lambda place: place.key != before):
            if identities.get(place.key) is None:
                identities[place.key] = identity_of(place)
            found = identities[place.key]
            if found is not None and found.query_id == query_id:
                self._keys_of[query_id] = place.key
                return found
        return None

    def links(self, origin: Origin | None) -> pages.OriginLinks:
        """Return the pages of a query's origin, as far as they are below the directory."""
        if origin is None:
            return pages.OriginLinks()
        query = self.identity(origin.query_id)
        saved = (each for each in self.places().savepoints if each.storage.url == origin.path)
        snapshot = next((f"/s/{each.key}/" for each in saved), None)
        if query is not None and origin.checkpoint_id is not None:
            name = checkpoint_name(origin.checkpoint_id)
            if origin.path == query.place.checkpoints.url_of(name):
                snapshot = f"/q/{query.place.key}/chk/{origin.checkpoint_id}/"
        return pages.OriginLinks(query, snapshot)


def make_app(
    root: Storage,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    bundle: str | None = None,
) -> Flask:
    """Return the application that shows a directory."""
    app = Flask("pyspark_ckpt.console.html", static_folder="static")
    made = None if bundle is None else made_at_ms(root)
    site = pages.Site(bundle or root.url, bundle is not None, made)
    directory = _Directory(root)
    guard(app, host, token)
    _add_overview(app, site, directory, Glances(has_data=bundle is None))
    _add_query_pages(app, site, directory, has_data=bundle is None)
    _add_plan(app, site, directory, has_data=bundle is None)

    def show_error(error: HTTPException) -> tuple[str, int]:
        code = error.code or 500
        return pages.message_page(site, f"{code} {error.name}", error.description or ""), code

    def show_problem(error: Exception) -> tuple[str, int]:
        return pages.message_page(site, "This page cannot be shown", str(error)), 503

    app.register_error_handler(HTTPException, show_error)
    app.register_error_handler(CkptError, show_problem)
    app.register_error_handler(OSError, show_problem)
    return app


def _add_overview(app: Flask, site: pages.Site, directory: _Directory, glances: Glances) -> None:
    @app.get("/")
    def queries() -> str:
        places = directory.places()
        summaries = [summary_or_problem(place, site.now_ms()) for place in places.queries]
        found = read_savepoints(places.savepoints)
        return pages.queries_page(site, places, summaries, glances.of(summaries), found)

    @app.get("/s/<string:key>/")
    def savepoint(key: str) -> str:
        place = directory.places().savepoint(key)
        if place is None:
            abort(404, "there is no such savepoint")
        page = savepoint_page(read_metadata(place.storage))
        query = directory.identity(page.metadata.query_id)
        return pages.savepoint_page_html(site, place, page, query)


def _add_query_pages(
    app: Flask, site: pages.Site, directory: _Directory, *, has_data: bool
) -> None:
    @app.get("/q/<string:key>/")
    def query(key: str) -> str:
        place = directory.query(key)
        before = request.args.get("before", type=int)
        summary, timeline = summary_of(place, site.now_ms()), timeline_of(place, before)
        slowest = slowest_epoch(place, timeline)
        # Next to older checkpoints, one of these would be named as the last before something.
        ways = ways_back(place, timeline, slowest) if before is None else None
        links = directory.links(summary.origin)
        return pages.query_page(site, summary, timeline, slowest, ways, links)

    @app.get("/q/<string:key>/newest")
    def newest(key: str) -> Response:
        place = directory.query(key)
        with retained_checkpoints(place.checkpoints) as found:
            numbers = found.newest(1)
        if not numbers:
            abort(404, "there is no checkpoint yet")
        return redirect(f"/q/{place.key}/chk/{numbers[0]}/")

    @app.get("/q/<string:key>/chk/<int:number>/")
    def checkpoint(key: str, number: int) -> str:
        place = directory.query(key)
        page = checkpoint_page(place, number)
        if page is None:
            abort(404, f"there is no chk-{number}: retention may have removed it")
        if isinstance(page, CkptError):
            raise page
        return pages.checkpoint_page_html(site, place, number, page)

    @app.get("/q/<string:key>/state")
    def state(key: str) -> str:
        place = directory.query(key)
        asked = None
        texts, nulls = request.args.getlist("key"), request.args.getlist("null")
        if texts:
            asked = KeyRequest(
                request.args.get("operator", ""),
                request.args.get("state", ""),
                tuple(None if str(n) in nulls else text for n, text in enumerate(texts)),
            )
        return pages.state_page_html(site, place, state_page(place, asked, has_data=has_data))

    @app.get("/q/<string:key>/settings")
    def settings(key: str) -> str:
        place = directory.query(key)
        records = RecordedRuns(place.checkpoints).starts_and_ends()
        starts = [each for each in records if isinstance(each, RunStarted)]
        return pages.settings_page(site, place, _name_of(place), starts)

    @app.get("/q/<string:key>/files")
    def files(key: str) -> str:
        place = directory.query(key)
        kept = kept_files(place) if has_data else bundled_kept_files(place)
        return pages.files_page(site, place, _name_of(place), kept)


def _name_of(place: QueryPlace) -> str:
    return summary_or_problem(place, now_ms=0).title  # which no time changes


def _add_plan(app: Flask, site: pages.Site, directory: _Directory, *, has_data: bool) -> None:
    @app.get("/q/<string:key>/plan")
    def plan(key: str) -> str:
        place = directory.query(key)
        summary = summary_of(place, site.now_ms())
        paths = _snapshots(directory.places(), place)
        chosen = request.args.get("from", next(iter(paths), None))
        drops = request.args.get("drop") == "1"
        found, problem = None, None
        if chosen is not None and chosen not in paths:
            abort(404, "there is no such snapshot")
        if summary.metadata is None or chosen is None:
            problem = "there is no checkpoint to plan with"
        else:
            try:
                found = plan_against(
                    summary.metadata, paths[chosen][1], drops=drops, has_data=has_data
                )
            except (OSError, CkptError) as exc:
                problem = str(exc)
        choices = tuple((value, text) for value, (text, _) in paths.items())
        choice = pages.PlanChoice(choices, chosen, drops, found, problem)
        return pages.plan_page(site, place, summary.title, choice)


def _snapshots(places: Places, place: QueryPlace) -> dict[str, tuple[str, str]]:
    """Return the text and path of each snapshot to choose, by what stands for it in addresses."""
    found: dict[str, tuple[str, str]] = {}
    for savepoint in places.savepoints:
        url = savepoint.storage.url
        found[f"s-{savepoint.key}"] = f"savepoint {savepoint.storage.name}", url
    with retained_checkpoints(place.checkpoints) as retained:
        for number in retained.newest(_CHECKPOINTS_TO_CHOOSE):
            name = checkpoint_name(number)
            found[f"c-{number}"] = f"{name} of this query", place.checkpoints.url_of(name)
    for other in [each for each in places.queries if each.key != place.key][:_QUERIES_TO_CHOOSE]:
        # A query that cannot be read cannot be chosen. Its own page says why.
        with (
            suppress(OSError, CkptError),
            retained_checkpoints(other.checkpoints) as retained,
        ):
            for number in retained.newest(1):
                name = checkpoint_name(number)
                text = f"{name} of {_name_of(other)}"
                found[f"q-{other.key}"] = text, other.checkpoints.url_of(name)
    return found


def make_server(
    root: Storage,
    *,
    host: str,
    port: int,
    token: str | None = None,
    bundle: str | None = None,
) -> tuple[Any, str]:
    """Return a server that listens and does not answer yet, and the address of its first page.

    Port 0 takes any free port. On other hosts than loopback, requests need a token even if `token`
    is ``None``. It raises ``OSError`` if the port is in use.
    """
    host = host.removeprefix("[").removesuffix("]")  # as an address of IPv6 is written in a URL
    if token is None and not is_loopback(host):
        token = new_token()
    sockets = _listening_at(host, port)
    app = make_app(root, host=host, token=token, bundle=bundle)
    server = waitress.create_server(app, sockets=sockets, threads=_THREADS)
    name = f"[{host}]" if ":" in host else host
    ending = "" if token is None else f"?token={token}"
    return server, f"http://{name}:{_port_of(sockets[0])}/{ending}"


def _listening_at(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of a host, such as of IPv4 and IPv6; all have one port."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as exc:  # which says no more than that the name is not known
        raise ConfigurationError(
            f"the console cannot listen at {host!r}: it is neither an address nor a name that is "
            "known here; 0.0.0.0 stands for all addresses of this machine"
        ) from exc
    addresses = list(dict.fromkeys((each[0], each[4]) for each in found))
    for _ in range(_TRIES - 1 if port == 0 else 0):
        # The port that is free at the first address may be in use at another one.
        with suppress(OSError):
            return _bound(addresses, port)
    return _bound(addresses, port)


def _bound(addresses: Sequence[tuple[int, tuple[Any, ...]]], port: int) -> list[socket.socket]:
    """Listen at the addresses that this machine has now; raise if it has none of them."""
    missing: OSError | None = None
    with ExitStack() as opened:
        sockets: list[socket.socket] = []
        for family, (name, _, *rest) in addresses:
            wanted = _port_of(sockets[0]) if sockets else port
            try:
                listening = socket.create_server((name, wanted, *rest), family=family)
            except OSError as exc:
                error = OSError(
                    exc.errno,
                    f"the console cannot listen at {name}, port {wanted} "
                    f"({os.strerror(exc.errno or 0)}): give another host or port; port 0 stands "
                    "for any that is free",
                )
                if exc.errno not in _NOT_HERE:
                    raise error from exc
                missing = error
            else:
                sockets.append(opened.enter_context(listening))
        if missing is not None and not sockets:
            raise missing
        opened.pop_all()
    return sockets


def _port_of(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])
