"""The context of a stage."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.storage.location import Place, Storage


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
    """

    config: Config
    progress: Progress = field(default_factory=Silent)
    fingerprint: str = ""

    @property
    def storage(self) -> Storage:
        """Connection settings of the object stores."""
        return self.config.storage.open()

    def place(self, name: str) -> Place:
        """Resolve a path of the output directory: local, or on an object store."""
        return self.storage.place(self.config.output.dir / name)
