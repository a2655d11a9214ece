"""What every stage is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.storage.location import Place, Storage


@dataclass(frozen=True)
class StageContext:
    """One stage of one run: what is to be done, and who is told.

    Attributes
    ----------
    config : Config
        Its inputs are local files.
    progress : Progress
    fingerprint : str
        Of everything that the stage depends on; empty where a finished result is not to be
        taken as it is.
    """

    config: Config
    progress: Progress = field(default_factory=Silent)
    fingerprint: str = ""

    @property
    def storage(self) -> Storage:
        """How the run's object stores are spoken to."""
        return self.config.storage.open()

    def place(self, name: str) -> Place:
        """Say where a path of the output directory lies: here, or on an object store."""
        return self.storage.place(self.config.output.dir / name)
