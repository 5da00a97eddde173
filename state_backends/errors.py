"""Errors of the backends.

StateBackendError
├── BackendCorruptError (OSError)   the files of a local copy cannot be read
├── BackendLockedError (OSError)    another process has the directory open
├── BackendFullError (OSError)      no room left for the state
└── BackendResourceError (OSError)  the process may open no more files, or has no memory left
"""


class StateBackendError(Exception):
    """A backend could not do what was asked; the message names the directory."""


class BackendCorruptError(StateBackendError, OSError):
    """The files of a backend are missing or damaged; the copy must be rebuilt."""


class BackendLockedError(StateBackendError, OSError):
    """Another process has the same directory open."""


class BackendFullError(StateBackendError, OSError):
    """The disk or memory behind a backend is full."""


class BackendResourceError(StateBackendError, OSError):
    """The system gave no file descriptor or no memory; the files themselves may be good."""
