"""Progress that keeps its lines."""

from pipeline.core.progress import Silent


class Notes(Silent):
    """Silent progress whose ``lines`` has all that was logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        """Keep a line."""
        self.lines.append(message)
