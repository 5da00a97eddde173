"""A front of an S3 server that refuses requests as S3 does: the answer quotes the request.

S3 quotes the key's id, the session token and the text that it has signed itself, so that a client
can find its mistake. It is the client that must not show them to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from xml.sax.saxutils import escape

from tests.servers.s3_front import Answer, Request, s3_front

TOKEN = "x-amz-security-token"


class Refusing:
    """Refuses the requests that `refuses` selects; `quoted` has its answers."""

    def __init__(self) -> None:
        self.url = ""
        self.refuses: Callable[[Request], bool] = nothing
        self.quoted: list[str] = []

    def answer(self, request: Request) -> Answer:
        if not self.refuses(request):
            return request.passed_on()
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = _of_token(headers) if len(self.quoted) % 2 else _of_signature(request, headers)
        self.quoted.append(body)
        status = 400 if "InvalidToken" in body else 403
        content = b"" if request.method == "HEAD" else body.encode()
        return status, [("Content-Type", "application/xml")], content


def nothing(_: Request) -> bool:
    return False


def _of_signature(request: Request, headers: dict[str, str]) -> str:
    canonical = "\n".join(
        [request.method, request.path, *(f"{name}:{value}" for name, value in headers.items())]
    )
    return _error(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check "
        "your key and signing method.",
        AWSAccessKeyId=headers["authorization"].partition("Credential=")[2].partition("/")[0],
        StringToSign="AWS4-HMAC-SHA256",
        SignatureProvided=headers["authorization"].partition("Signature=")[2],
        CanonicalRequest=canonical,
    )


def _of_token(headers: dict[str, str]) -> str:
    said = "The provided token is malformed or otherwise invalid."
    return _error("InvalidToken", said, **{"Token-0": headers[TOKEN]})


def _error(code: str, message: str, **fields: str) -> str:
    named = {"Code": code, "Message": message, **fields, "RequestId": "1", "HostId": "1"}
    inner = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in named.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'


@contextmanager
def refusing_s3(server_url: str) -> Iterator[Refusing]:
    """Run the server in front of the one at `server_url`; yield it, with its own URL."""
    refusing = Refusing()
    with s3_front(server_url, refusing.answer) as refusing.url:
        yield refusing
