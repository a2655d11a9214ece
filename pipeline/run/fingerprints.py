"""Fingerprints of a run: each input and each written output is hashed once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geo.core.trust import trusting
from pipeline.config.schema import Config
from pipeline.products.products import EDITABLE
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.location import Storage, StorageError


class Fingerprints:
    """Cache of the fingerprints of a run's inputs and outputs.

    If an input changes during the run, its fingerprint stays: the next run finds the change.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, config: Config) -> None:
        self.directory = config.output.dir
        self.storage = config.storage.open()
        self._paths, self._ahead = config.input_paths(), config.ahead_paths()
        self._trust = config.trust
        self._inputs: dict[str, str] = {}  # by path: several keys may name one file
        self._outputs: dict[str, str] = {}

    def inputs(self, sections: Sequence[str] | None = None) -> dict[str, str]:
        """Fingerprint the input files of some sections of the configuration, or of all.

        Of what moves in forecasts, those that are there.

        Returns
        -------
        dict of str to str
            By configuration key.
        """
        chosen = {
            key: path
            for key, path in {**self._ahead, **self._paths}.items()
            if sections is None or key.split(".")[0] in sections
        }
        with trusting(self._trust):
            for key, path in chosen.items():
                if path not in self._inputs:
                    self._inputs[path] = self._of(path, may_lack=key not in self._paths)
        return {
            key: self._inputs[path]
            for key, path in chosen.items()
            if key in self._paths or self._inputs[path] != "absent"
        }

    def _of(self, path: str, *, may_lack: bool) -> str:
        """Fingerprint a file; one that may lack is absent where a server refuses to say."""
        try:
            return fingerprint_file(path, self.storage)
        except StorageError:  # 403 for what is not there, as buckets answer that are not listed
            if not may_lack:
                raise
            return "absent"

    def output(self, name: str) -> str:
        """Fingerprint an output, by its path in the output directory."""
        if name not in self._outputs:
            self._outputs[name] = output_fingerprint(self.directory / name, self.storage)
        return self._outputs[name]

    def outputs(self, patterns: Sequence[str]) -> dict[str, str]:
        """Fingerprint the outputs that match glob patterns, by path in the output directory."""
        paths = sorted({path for pattern in patterns for path in self.directory.glob(pattern)})
        names = [path.relative_to(self.directory).as_posix() for path in paths]
        return {name: self.output(name) for name in names}

    def forget(self, patterns: Sequence[str]) -> None:
        """Discard the fingerprints of outputs that will be rewritten."""
        for name in list(self._outputs):
            if any(Path(name).match(pattern) for pattern in patterns):
                del self._outputs[name]


def output_fingerprint(path: Path, storage: Storage | None = None) -> str:
    """Fingerprint an output; of what users may edit, as a style, only its presence."""
    if path.suffix in EDITABLE and path.is_file():
        return "present"
    return fingerprint_file(path, storage)
