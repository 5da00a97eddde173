"""A run's fence: which run of a query may change what its store says is complete."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import claim_again, claim_store, store_of


class Fence:
    """The claim of one run on a query's store, and whether the next run in this process has it.

    `store` is the store if the start of the run has claimed it; by default it is claimed now.
    """

    def __init__(
        self,
        storage: CoordinatorStorage,
        settings: Settings,
        query_id: str,
        store: CompletedCheckpointStore | None,
    ) -> None:
        self._storage = storage
        self._note = store_of(settings, query_id)
        self._guard = threading.Lock()
        self._gives_way = False
        self.store = store or claim_store(storage, settings, query_id)

    def give_way(self) -> None:
        """Leave the fence to the query's next run in this process, which claims it after this.

        A checkpoint of this run that is under way is then fenced, and :meth:`take_over` does
        nothing: unlike a driver of another process, the next run need not commit an epoch first.
        """
        with self._guard:
            self._gives_way = True

    def take_back(self, store: CompletedCheckpointStore) -> None:
        """Have the fence again that a next run claimed, with this store, and could not use.

        ``FencedError`` is raised if another driver has taken over the query.
        """
        with self._guard:
            store.check()
            claim_again(self._storage, self.store, self._note)
            self._gives_way = False

    def take_over(self, finally_do: Callable[[], None]) -> bool:
        """Take the fence from a driver that was started later, unless the next run has it.

        `finally_do` is called after an attempt, also if it is unknown whether the attempt worked.
        The result says whether this run has the fence.
        """
        with self._guard:
            if self._gives_way:
                return False
            try:
                claim_again(self._storage, self.store, self._note)
            finally:
                finally_do()
            return True
