"""Who may see the pages, and what a browser may do with them.

On loopback the name that the browser asked for must be one of loopback. Otherwise a page of
another site could reach the console by a name that it lets point to loopback. Elsewhere a token is
required: once in the address, from then on in a cookie.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets

from flask import Flask, Response, abort, make_response, redirect, request

COOKIE = "pyspark_ckpt_token"
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

    Parameters
    ----------
    app
        The application.
    host
        Where it is served.
    token
        The token that each request must have; ``None`` on loopback.
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
        given = request.args.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            answer: Response = make_response(redirect(request.path))
            answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            return answer
        kept = request.cookies.get(COOKIE, "")
        if not hmac.compare_digest(kept.encode(), token.encode()):
            abort(403, "add ?token=... to the address, as the console printed it")
        return None

    @app.after_request
    def add_headers(answer: Response) -> Response:
        for name, value in _HEADERS.items():
            answer.headers[name] = value
        return answer


def _name(host: str) -> str:
    """Return a host's name without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
