"""Who may see the pages, and what a browser may do with them.

On loopback the name that the browser asked for must be one of loopback. Otherwise a page of
another site could reach the console by a name that it lets point to loopback. Elsewhere a token is
required: once in the address, from then on in a cookie. A browser sends the cookie also if a link
on another site is clicked, such as in a wiki, and with nothing else that another site begins. That
does no harm: pages only read, and the other site cannot see them.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from urllib.parse import quote, urlencode

from flask import Flask, Response, abort, make_response, redirect, request

_COOKIE = "pyspark_ckpt_token"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether a server on a host is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(32)


def guard(app: Flask, host: str, token: str | None) -> None:
    """Check each request of an application, and add headers to each answer.

    Each request must have `token`, which is ``None`` on loopback.
    """
    names = _LOCAL_NAMES | {host}

    @app.before_request
    def check() -> Response | None:
        if request.method not in ("GET", "HEAD"):
            abort(405)
        if token is None:
            if _name(request.host) not in names:
                abort(403, "the console is served on loopback: ask for localhost")
            return None
        # A browser has one set of cookies for all ports of a host.
        cookie = f"{_COOKIE}_{request.environ['SERVER_PORT']}"
        given = request.args.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            answer: Response = make_response(redirect(_without_token()))
            answer.set_cookie(cookie, token, httponly=True, samesite="Lax")
            return answer
        kept = request.cookies.get(cookie, "")
        if not hmac.compare_digest(kept.encode(), token.encode()):
            abort(403, "add ?token=... to the address, as the console printed it")
        return None

    @app.after_request
    def add_headers(answer: Response) -> Response:
        for name, value in _HEADERS.items():
            answer.headers[name] = value
        return answer


def _without_token() -> str:
    """Return the address that is asked for, on this server, without the token."""
    others = [each for each in request.args.items(multi=True) if each[0] != "token"]
    path = f"/{quote(request.path.lstrip('/'))}"  # two slashes would name another server
    return f"{path}?{urlencode(others)}" if others else path


def _name(host: str) -> str:
    """Return a host's name without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
