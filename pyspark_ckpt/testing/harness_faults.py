"""The crashes, losses and snapshots of a harness."""

from __future__ import annotations

from pyspark_ckpt.testing.crash_step import CrashStep
from pyspark_ckpt.testing.snapshot import Snapshot, put_back, take
from pyspark_ckpt.testing.state_access import StateAccess


class HarnessFaults(StateAccess):
    """The part of :class:`ProcessorHarness` that loses state and returns to earlier state.

    Parameters
    ----------
    subtask : HarnessSubtask
        The subtask of the harness.
    keys : GivenKeys
        The harness's keys.
    clock : HarnessClock
        The harness's times.
    """

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
