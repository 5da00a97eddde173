"""A front of an S3 server that lists uploads on small pages, as S3 does with thousands."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from tests.servers.s3_front import Answer, Request, s3_front


class Pages:
    """`size` uploads are on a page; `asked` counts the pages."""

    def __init__(self, size: int) -> None:
        self.url = ""
        self.size = size
        self.asked = 0

    def answer(self, request: Request) -> Answer:
        status, headers, content = request.passed_on()
        query = parse_qs(urlsplit(request.path).query, keep_blank_values=True)
        if request.method != "GET" or "uploads" not in query or status != 200:
            return status, headers, content
        self.asked += 1
        root = ET.fromstring(content)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        after = (query.get("key-marker", [""])[0], query.get("upload-id-marker", [""])[0])
        rest = []
        for upload in root.findall(f"{space}Upload"):
            root.remove(upload)
            names = (upload.findtext(f"{space}Key"), upload.findtext(f"{space}UploadId"))
            if names > after:
                rest.append((names, upload))
        rest.sort(key=lambda each: each[0])
        page = rest[: self.size]
        for _, upload in page:
            root.append(upload)
        is_truncated = len(rest) > len(page)
        root.find(f"{space}IsTruncated").text = str(is_truncated).lower()
        if is_truncated:
            for tag, value in zip(
                ("NextKeyMarker", "NextUploadIdMarker"), page[-1][0], strict=True
            ):
                ET.SubElement(root, f"{space}{tag}").text = value
        content = ET.tostring(root)
        headers = [pair for pair in headers if pair[0].lower() != "content-length"]
        return status, headers, content


@contextmanager
def paging_s3(server_url: str, size: int) -> Iterator[Pages]:
    """Run the server in front of the one at `server_url`; yield it, with its own URL."""
    pages = Pages(size)
    with s3_front(server_url, pages.answer) as pages.url:
        yield pages
