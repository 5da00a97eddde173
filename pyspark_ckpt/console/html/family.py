"""The lineage of queries: which one was restored from which, with rescales and rollbacks."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ckpt.console.data.places import SavepointPlace
from pyspark_ckpt.console.data.queries import QuerySummary
from pyspark_ckpt.console.html.charts import Chart, Node, tree_chart
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import CheckpointKind

MOST_NODES = 120


def read_savepoints(
    places: Sequence[SavepointPlace],
) -> list[tuple[SavepointPlace, CheckpointMetadata | CkptError]]:
    """Return savepoints with their metadata, or the errors of reading it, oldest first."""
    found = [(place, _read(place)) for place in places]
    return sorted(found, key=lambda each: getattr(each[1], "completed_at_ms", 0))


def _read(place: SavepointPlace) -> CheckpointMetadata | CkptError:
    try:
        return read_metadata(place.storage)
    except CkptError as exc:
        return exc
    except OSError as exc:  # it hides no other savepoint
        return CkptError(str(exc))


def family_chart(
    summaries: Sequence[QuerySummary],
    savepoints: Sequence[tuple[SavepointPlace, CheckpointMetadata | CkptError]],
) -> Chart:
    """Return the tree of queries: below each its savepoints, and below these their forks."""
    tree = _Tree(summaries, savepoints)
    known = {summary.query_id for summary in summaries}
    for summary in summaries:
        if summary.origin is None or summary.origin.query_id not in known:
            tree.add_query(summary, None)
    for summary in summaries:  # those whose origins name each other
        tree.add_query(summary, None)
    return tree_chart("Lineage", tree.nodes)


class _Tree:
    def __init__(
        self,
        summaries: Sequence[QuerySummary],
        savepoints: Sequence[tuple[SavepointPlace, CheckpointMetadata | CkptError]],
    ) -> None:
        self.nodes: list[Node] = []
        self._summaries = summaries
        self._savepoints = savepoints
        self._done: set[str] = set()

    def add_query(self, summary: QuerySummary, parent: int | None) -> None:
        if summary.place.key in self._done or len(self.nodes) >= MOST_NODES:
            return
        self._done.add(summary.place.key)
        origin = summary.origin
        if origin is not None and parent is None:
            parent = self._add(
                Node(f"{_origin_text(origin)}, not here", "missing", origin.path, None)
            )
        own = self._add(
            Node(
                _query_text(summary), f"state-{summary.run.state.name.lower()}",
                summary.place.path, parent, f"/q/{summary.place.key}/",
            )
        )  # fmt: skip
        children = [
            each
            for each in self._summaries
            if each.origin is not None and each.origin.query_id == summary.query_id
        ]
        shown: set[str] = set()
        for place, metadata in self._savepoints:
            if isinstance(metadata, CheckpointMetadata) and metadata.query_id == summary.query_id:
                self._add_savepoint(place, metadata, own, children, shown)
        for child in children:
            if child.place.key not in shown and child.origin is not None:
                text = _origin_text(child.origin)
                self.add_query(child, self._add(Node(text, "taken", child.origin.path, own)))

    def _add_savepoint(
        self,
        place: SavepointPlace,
        metadata: CheckpointMetadata,
        own: int,
        children: Sequence[QuerySummary],
        shown: set[str],
    ) -> None:
        text = f"savepoint of epoch {metadata.epoch}"
        node = self._add(Node(text, "taken", place.storage.url, own, f"/s/{place.key}/"))
        for child in children:
            if child.origin is not None and child.origin.path == place.storage.url:
                shown.add(child.place.key)
                self.add_query(child, node)

    def _add(self, node: Node) -> int:
        if len(self.nodes) < MOST_NODES:
            self.nodes.append(node)
        return len(self.nodes) - 1


def _origin_text(origin: Origin) -> str:
    if origin.kind is CheckpointKind.CHECKPOINT:
        return f"chk-{origin.checkpoint_id} of epoch {origin.epoch}"
    return f"savepoint of epoch {origin.epoch}"


def _query_text(summary: QuerySummary) -> str:
    parts = [f"{summary.title[:60]}: {summary.run.state}"]
    if summary.metadata is not None:
        numbers = {str(operator.parallelism) for operator in summary.metadata.operators}
        parts.append(f"parallelism {', '.join(sorted(numbers))}")
    if summary.rolled_back:
        parts.append(f"rolled back {len(summary.rolled_back)} times")
    return ", ".join(parts)
