"""The context of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.storage.location import Place, Storage

#: How a fitted series takes in what is new: by an update alone, which is refused where it cannot
#: be; or by an update first, and by a new fit where it cannot be or proposes one.
Updating = Literal["only", "first"]


@dataclass(frozen=True)
class StageContext:
    """Arguments of a stage: configuration, progress and fingerprint.

    Attributes
    ----------
    config : Config
        All inputs are local files.
    progress : Progress
    fingerprint : str
        Fingerprint of all inputs; if empty, the stage does not reuse finished results.
    record : mapping
        Of each earlier stage that has run: its ``inputs`` (fingerprints by name) and its
        ``summary``, as in ``run.json``.
    inputs : mapping of str to str
        Fingerprints of the stage's own inputs, by name.
    update : {"only", "first"}, optional
        How a fitted series takes in what is new; by default, by a new fit.
    """

    config: Config
    progress: Progress = field(default_factory=Silent)
    fingerprint: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    update: Updating | None = None

    @property
    def storage(self) -> Storage:
        """Connection settings of the object stores."""
        return self.config.storage.open()

    def place(self, name: str) -> Place:
        """Resolve a path of the output directory: local, or on an object store."""
        return self.storage.place(self.config.output.dir / name)
