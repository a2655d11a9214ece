"""Progress of fits within a fit."""

from __future__ import annotations

import pytest

from pipeline.training.inner_progress import InnerProgress


class Record:
    """What a task was advanced by, and the lines."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.fields: list[dict[str, object]] = []
        self.logs: list[str] = []

    def advance(self, n: float = 1, **fields: object) -> None:
        self.steps.append(n)
        self.fields.append(fields)

    def log(self, message: str) -> None:
        self.logs.append(message)


def test_steps_are_whole_however_their_fits_end() -> None:
    record = Record()
    within = InnerProgress(record, record, 2)  # type: ignore[arg-type]
    for epochs, done in (((4, 4), 1.0), ((1, 4), 2.0), ((), 3.0)):  # converged early; failed
        for n in epochs:
            with within.task("fit", 4) as task:
                for _ in range(n):
                    task.advance(1, rate=0.5)
        within.finish()
        assert sum(record.steps) == pytest.approx(done)
    assert max(record.steps[:8]) == pytest.approx(1 / 8)
    assert record.fields[0] == {"rate": 0.5}


def test_a_fit_of_unknown_length_is_one_step_at_its_end() -> None:
    record = Record()
    within = InnerProgress(record, record, 1)  # type: ignore[arg-type]
    with within.task("fit") as task:
        task.advance(3)
    within.finish()
    assert record.steps == [0.0, 1.0]
    within.name = "choice-1"
    within.log("fit: resumes")
    assert record.logs == ["fit: resumes (choice-1)"]
