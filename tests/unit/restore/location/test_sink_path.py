"""Whether a query may write its next epochs to an output path, decided from what is known of it."""

from __future__ import annotations

import pytest

from pyspark_ckpt.formats.location_files import RolledBack, UsedPath, Writer
from pyspark_ckpt.formats.metadata import CheckpointKind, Origin
from pyspark_ckpt.restore.location.sink_path import Continued, Output, use_of

HERE, ELSEWHERE = "/loc", "/other"


def by(query_id: str, after: int = -1, location: str = HERE, path: str = "file:/out") -> Writer:
    return Writer(query_id=query_id, after=after, location=location, path=path)


def used(query_id: str, after: int, path: str | None) -> UsedPath:
    return UsedPath(query_id=query_id, after=after, path=path)


def at(newest: int, *writers: Writer, **more: object) -> Output:
    """A log that has all epochs up to one."""
    values = {"oldest": min(newest, 0), "newest": newest, "is_fresh": newest < 0, **more}
    return Output("/out", "file:/out", writers=writers, **values)


def query(query_id: str | None, committed: int, begun: int | None = None, **more: object):
    return Continued(
        query_id, committed=committed, begun=committed if begun is None else begun, **more
    )


ORIGIN = Origin(
    path="/sp",
    kind=CheckpointKind.SAVEPOINT,
    checkpoint_id=None,
    query_id="a",
    epoch=3,
    operators=(),
)
FRESH = query(None, -1)
BACK = query("b", 3, rolled_back=(RolledBack("a", 1),))
"""A location that was rolled back from query a to its epoch 1, and ran two epochs."""
UNDONE = query("a", 3, rolled_back=(RolledBack("b", -1),), used=(used("a", -1, "/out"),))
MOVED = (used("a", -1, "/out"), used("a", 3, "/out2"), used("a", 6, "/out"))


@pytest.mark.parametrize(
    ("output", "continued", "refusal"),
    [
        # nobody has claimed the path
        (at(-1), FRESH, None),
        (at(-1), query("a", 5), None),
        (at(0), FRESH, "another query"),
        (at(3), query("a", 3), None),  # the path could not be seen then, and so for the next two
        (at(4), query("a", 3, begun=4), None),
        (at(2), query("a", 3, used=(used("a", 2, None),)), None),
        (at(5), query("a", 3), "another query"),
        (at(3), query("a", 3, used=(used("a", -1, "/out2"),)), "another query"),
        (at(3), query("a", 3, used=(used("a", -1, None),)), "another query"),
        (at(3), query("a", 3, used=(used("a", -1, "/out"),)), None),
        (at(3), query("b", 3, origin=ORIGIN), "another query"),
        (at(3, is_fresh=True), query("b", 3, origin=ORIGIN), None),
        (at(3), query("b", 3, origin=ORIGIN, rolled_back=(RolledBack("a", 3),)), None),
        # another query has
        (at(3, by("x", location=ELSEWHERE), other_location=ELSEWHERE), FRESH, ELSEWHERE),
        (at(3, by("x", location=ELSEWHERE)), FRESH, "query x"),
        (at(3, by("x")), query("a", 9), "query x"),
        (at(-1, by("x", location=ELSEWHERE), other_location=ELSEWHERE), FRESH, ELSEWHERE),
        (at(-1, by("x", location=ELSEWHERE)), FRESH, None),  # it never began, and is gone
        # the query itself has
        (at(3, by("a")), query("a", 3), None),
        (at(4, by("a")), query("a", 3, begun=4), None),
        (at(3, by("a")), query("a", 2), "continues from epoch 2"),
        (at(0, by("a")), query("a", -1), "continues from its first epoch"),
        (at(3, by("a"), other_location=ELSEWHERE), query("a", 3), "a copy"),
        (at(3, by("a", path="file:/link")), query("a", 3), "path file:/link, or a new path"),
        (at(-1, by("a", path="file:/link")), query("a", -1), None),
        # it was rolled back, and that was undone
        (at(3, by("a")), BACK, "made void"),
        (at(1, by("a")), BACK, None),
        (at(1, by("a"), lacking=(2, 3)), BACK, "lacks epochs"),
        (at(3, by("a"), by("b", 1)), BACK, None),
        (at(3, by("b", 1)), UNDONE, "made void"),
        (at(3, by("a"), by("b", 3)), UNDONE, None),  # b has written nothing there
        (at(4, by("a"), by("b", 3)), query("a", 9, rolled_back=(RolledBack("b", -1),)), "void"),
        # epochs went elsewhere
        (at(3, by("a"), lacking=(4, 5, 6)), query("a", 6, used=MOVED[:2]), None),
        (at(3, by("a"), lacking=(4, 5, 6, 7)), query("a", 7, used=MOVED), ": 7."),
        (at(4, by("a")), query("a", 6, used=MOVED[:2]), "up to 3 there"),
        (at(6, by("a"), lacking=(7, 8)), query("a", 8, used=(*MOVED, used("a", 6, None))), None),
        (at(8, by("a"), lacking=(2, 5)), query("a", 8, used=MOVED), ": 2."),
        (at(8, by("a"), oldest=5, lacking=(0, 1, 2, 3, 4)), query("a", 8), None),
        (at(8, by("a"), oldest=0, lacking=(3, 4)), query("a", 8), "3, 4"),
        # the log is gone, and the files are there
        (at(-1, has_files=True), FRESH, None),
        (at(-1, has_files=True), query("a", -1, begun=0), None),
        (at(-1, has_files=True), query("a", 5), "is missing"),
        (at(-1, by("a"), has_files=True), query("a", 5, used=MOVED[:1]), "is missing"),
        (at(-1, has_files=True), query("a", 5, used=(used("a", -1, "/out2"),)), None),
        (at(-1, has_files=True), query("b", 3, origin=ORIGIN), None),
        (at(-1, has_files=True), query("b", 4, origin=ORIGIN), "is missing"),
    ],
)
def test_use_of(output: Output, continued: Continued, refusal: str | None) -> None:
    found = use_of(output, continued)
    assert (found is None) == (refusal is None), found
    assert found is None or refusal in str(found)
    assert found is None or "new path" in str(found).lower()
