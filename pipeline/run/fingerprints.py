"""The fingerprints of one run: each input is hashed once, each output once after it was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.schema import Config
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.location import Storage


class Fingerprints:
    """What the files of a run hold, as far as somebody asked; made once and handed to the stages.

    An input that changes while the run goes on keeps the fingerprint that it had: the next run
    finds it changed.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, config: Config) -> None:
        self.directory = config.output.dir
        self.storage = config.storage.open()
        self._paths = config.input_paths()
        self._inputs: dict[str, str] = {}  # by path: grid.like mostly is another key's file
        self._outputs: dict[str, str] = {}

    def inputs(self, sections: Sequence[str] | None = None) -> dict[str, str]:
        """Fingerprint the input files of some sections of the configuration, or of all.

        Returns
        -------
        dict of str to str
            By configuration key.
        """
        chosen = {
            key: path
            for key, path in self._paths.items()
            if sections is None or key.split(".")[0] in sections
        }
        for path in chosen.values():
            if path not in self._inputs:
                self._inputs[path] = fingerprint_file(path, self.storage)
        return {key: self._inputs[path] for key, path in chosen.items()}

    def output(self, name: str) -> str:
        """Fingerprint what a stage left, by its path in the output directory."""
        if name not in self._outputs:
            self._outputs[name] = output_fingerprint(self.directory / name, self.storage)
        return self._outputs[name]

    def outputs(self, patterns: Sequence[str]) -> dict[str, str]:
        """Fingerprint all that matches some patterns in the output directory, by path."""
        return {name: self.output(name) for name in self._matching(patterns)}

    def forget(self, patterns: Sequence[str]) -> None:
        """Forget outputs that are about to be written."""
        for name in list(self._outputs):
            if any(Path(name).match(pattern) for pattern in patterns):
                del self._outputs[name]

    def _matching(self, patterns: Sequence[str]) -> list[str]:
        paths = sorted({path for pattern in patterns for path in self.directory.glob(pattern)})
        return [path.relative_to(self.directory).as_posix() for path in paths]


def output_fingerprint(path: Path, storage: Storage | None = None) -> str:
    """Fingerprint an output; of a style only that it is there."""
    # A style is made to be edited: that it is there is enough.
    if path.suffix == ".qml" and path.is_file():
        return "present"
    return fingerprint_file(path, storage)
