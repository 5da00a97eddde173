"""The crashes, losses and snapshots of a harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark_ckpt.operator.quarantine.releases import EVERY_KEY, NO_KEY
from pyspark_ckpt.testing.crash_step import CrashStep
from pyspark_ckpt.testing.harness_epochs import HarnessEpochs
from pyspark_ckpt.testing.snapshot import Snapshot, put_back, take
from pyspark_ckpt.testing.state_access import StateAccess


class HarnessFaults(StateAccess):
    """The part of :class:`ProcessorHarness` that loses state and returns to earlier state."""

    _epochs: HarnessEpochs

    def crashAt(self, step: CrashStep) -> None:
        """Crash the next epoch that reaches a step, once.

        The epoch raises ``CrashedError``, and everything that it did is lost, as with ``kill -9``.
        State, timers, output and times are as after the last epoch that ended, so you can repeat
        the call. A call that sets a state, such as ``updateValueState``, does not crash.

        Parameters
        ----------
        step : CrashStep
            Where the epoch crashes.

        Examples
        --------
        >>> from pyspark_ckpt import CrashedError
        >>> from pyspark_ckpt.testing import CrashStep
        >>> harness.crashAt(CrashStep.AFTER_SEGMENT)
        >>> try:
        ...     harness.test("ada", [Row(city="Lima")])
        ... except CrashedError:
        ...     print(harness.peekValueState("count", "ada"))
        (2,)
        >>> harness.test("ada", [Row(city="Lima")])
        [Row(user='ada', n=3)]
        """
        self._subtask.crash.plan(CrashStep(step))

    def parkedKeys(self) -> dict[Any, str]:
        """Return the keys that are parked, with the errors of their processor.

        Returns
        -------
        dict
            Each error by its key; empty without ``onError="quarantine"``.

        Examples
        --------
        >>> harness.parkedKeys()
        {}
        """
        found = self._subtask.parked(self._clock.now()).errors
        known = self._keys.known
        return {
            known[encoded] if self._keys.columns > 1 else known[encoded][0]: error
            for encoded, error in found.items()
        }

    def release(self, keys: Sequence[Any] | None = None) -> Any:
        """Give the rows of parked keys to the processor, in an epoch without other rows.

        The processor gets the rows in a call for each epoch that they came in. If it raises, the
        key stays parked.

        Parameters
        ----------
        keys : sequence, optional
            Keys as in :meth:`ProcessorHarness.test`; by default all parked keys.

        Returns
        -------
        list of Row, or pandas.DataFrame
            What the processor yielded, also for timers that were due.

        Examples
        --------
        >>> harness.release()
        []
        """
        wanted = keys if keys is None else [self._keys.given(key).encoded for key in keys]
        self._subtask.releases.next = EVERY_KEY if wanted is None else frozenset(wanted)
        try:
            parked = self._subtask.parked(self._clock.now())
            return self._epochs.releasing(in_frames=parked.in_frames)
        finally:
            self._subtask.releases.next = NO_KEY

    def loseLocalCopy(self) -> None:
        """Delete the backend's directory, as when an executor is lost.

        The next epoch rebuilds the local copy from the durable files.

        Examples
        --------
        >>> harness.loseLocalCopy()
        >>> harness.peekValueState("count", "ada")
        (2,)
        """
        self._subtask.lose_local_copy()

    def snapshot(self) -> Snapshot:
        """Return the state that the last epoch left, for :meth:`restore` and :meth:`restored`.

        Returns
        -------
        Snapshot
            With copies of all files; it outlives the harness.

        Examples
        --------
        >>> snapshot = harness.snapshot()
        >>> snapshot.time_mode
        'ProcessingTime'
        """
        return take(self._subtask, self._keys, self._clock)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot, of this harness or of another one with the same uid.

        Parameters
        ----------
        snapshot : Snapshot
            What :meth:`snapshot` returned.

        Raises
        ------
        IncompatibleStateError
            If the processor asks for states that the stored ones cannot become, or the snapshot is
            of another operator; the harness stays as it was.

        Examples
        --------
        >>> snapshot = harness.snapshot()
        >>> harness.test("ada", [Row(city="Lima")])
        [Row(user='ada', n=3)]
        >>> harness.restore(snapshot)
        >>> harness.peekValueState("count", "ada")
        (2,)
        """
        put_back(snapshot, self._subtask, self._keys, self._clock)
