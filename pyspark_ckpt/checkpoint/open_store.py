"""The store of completed checkpoints that the settings ask for."""

from __future__ import annotations

from pyspark_ckpt.checkpoint.checkpoint_store import CompletedCheckpointStore
from pyspark_ckpt.checkpoint.completed_checkpoints import CompletedCheckpoints
from pyspark_ckpt.checkpoint.pointed_checkpoints import PointedCheckpoints
from pyspark_ckpt.checkpoint.zookeeper_pointers import ZooKeeperPointers
from pyspark_ckpt.configuration import ZOOKEEPER, Settings
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.on_disk.storage_views import CoordinatorStorage


def open_store(
    storage: CoordinatorStorage, settings: Settings, query_id: str
) -> CompletedCheckpointStore:
    """Open the store of a query's checkpoints; nothing is claimed yet.

    Raises
    ------
    ConfigurationError
        If ZooKeeper is asked for without its servers or its library.
    OSError
        If ZooKeeper cannot be reached.
    """
    if settings.high_availability_type != ZOOKEEPER:
        return CompletedCheckpoints(storage)
    if settings.zookeeper_quorum is None:
        raise ConfigurationError(
            "spark.ckpt.high-availability.type is zookeeper: set "
            "spark.ckpt.high-availability.zookeeper.quorum to its servers, host:port with commas "
            "between"
        )
    path = f"{settings.zookeeper_root.rstrip('/')}/{query_id}"
    return PointedCheckpoints(storage, ZooKeeperPointers(settings.zookeeper_quorum, path))
