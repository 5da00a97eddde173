"""Errors of the backends.

StateBackendError
├── BackendCorruptError (OSError)   the files of a local copy cannot be read
├── BackendLockedError (OSError)    another process has the directory open
└── BackendFullError (OSError)      no room left for the state
"""


class StateBackendError(Exception):
    """A backend could not do what was asked; the message names the directory."""


class BackendCorruptError(StateBackendError, OSError):
    """The files of a backend are missing or damaged; the copy must be rebuilt."""


class BackendLockedError(StateBackendError, OSError):
    """Another process has the same directory open."""


class BackendFullError(StateBackendError, OSError):
    """The disk or memory behind a backend is full."""
