"""Errors of the backends.

StateBackendError
├── BackendCorruptError (OSError)   the files of a local copy cannot be read
├── BackendLockedError (OSError)    another process has the directory open
├── BackendFullError (OSError)      the disk is full
└── BackendResourceError (OSError)  the process is out of file descriptors or memory
"""


class StateBackendError(Exception):
    """A call of a backend failed; the message names the directory."""


class BackendCorruptError(StateBackendError, OSError):
    """The files of a backend are missing or damaged; the copy must be rebuilt."""


class BackendLockedError(StateBackendError, OSError):
    """Another process has the same directory open."""


class BackendFullError(StateBackendError, OSError):
    """The disk or memory behind a backend is full."""


class BackendResourceError(StateBackendError, OSError):
    """The process is out of file descriptors or memory; the files may be good."""
