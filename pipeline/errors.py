"""What can go wrong in the pipeline; every error is also a built-in one."""

from __future__ import annotations


class PipelineError(Exception):
    """Any error of the pipeline."""


class StoreError(PipelineError, OSError):
    """A store is absent, unfinished, damaged or of another format; the message says what to do."""


class StoreInputError(PipelineError, ValueError):
    """The arrays given to be stored are unusable; the message says which and why."""


class ClusterError(PipelineError, ConnectionError):
    """The Dask cluster cannot be reached, or has no worker left."""
