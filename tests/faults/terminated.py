"""SIGTERM at drawn moments of each command: ``python -m tests.faults.terminated --count 50``.

Commands are real processes (``python -m pipeline.cli``). Each trial waits until a moment, sends
SIGTERM, and judges: gone within 25 seconds, with the status 143; one line on standard error;
nothing left but what the next run uses or removes; and one more run, undisturbed and of
inputs that answer, leaves bit for bit what a run leaves that nothing happened to. Writes
``benchmarks/results/terminated.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import rasterio
import yaml

from tests.bands import write
from tests.faults.country import Country, Digests, digests
from tests.pipeline.cli.hanging import breaking_off, silent_server

ROOT = Path(__file__).parents[2]
LIMIT_S = 25.0
#: What is ended: the command, and where its inputs are.
KINDS = (
    "run", "check", "ingest of a raster that takes minutes",
    "ingest, the server is silent at the opening", "ingest, the server falls silent in a read",
    "predict", "evaluate", "publish",
)  # fmt: skip
_EXTREME = 120_000  # pixels a side of the raster that takes minutes


@dataclass
class Ending:
    """One SIGTERM.

    Attributes
    ----------
    kind : str
    at_s : float
        Seconds from the start of the process to the signal.
    took_s : float or None
        Seconds from the signal to the end of all processes; None if it ended before the signal.
    status : int or None
        Exit status as a shell has it.
    forced : bool
        Whether the process had to be killed.
    wrong : list of str
    """

    kind: str
    at_s: float
    took_s: float | None = None
    status: int | None = None
    forced: bool = False
    wrong: list[str] = field(default_factory=list)


class Terminations:
    """One country, and one trial after the other.

    Parameters
    ----------
    directory : Path
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.out = directory, directory / "out"
        self.scratch = directory / "tmp"
        self.scratch.mkdir()
        self.country = Country(directory / "country")
        self.config = self.country.config(directory / "disagg.yaml", self.out)
        self._set(evaluate={"folds": 2, "schemes": ["area"]}, gates={"better_than_constant": False})
        self._set(fit={"batch_areas": 4, "max_epochs": 5, "seed": 1})
        self.environ = {
            **os.environ,
            "TMPDIR": str(self.scratch),
            "OGR_CURRENT_DATE": "2020-01-01T00:00:00Z",
            # Results written into the checkout would make its commit a `.dirty` one from then on.
            "DISAGG_REVISION": "trials",
        }
        self.seconds: dict[str, float] = {}
        self.starts: dict[str, Path] = {}
        self.expected: Digests = {}

    def prepare(self, kinds: Sequence[str] = KINDS) -> None:
        """Make the undisturbed runs, and keep what each command of some kinds finds before it."""
        self.seconds["run"] = self._undisturbed("run")
        self.expected = digests(self.out)
        self._keep("publish")
        for name in {"check", "publish"} & set(kinds):
            self.seconds[name] = self._undisturbed(name)
        if "predict" in kinds or "evaluate" in kinds:
            shutil.rmtree(self.out)
            for stage in ("ingest", "fit", "predict", "evaluate"):
                if stage in ("predict", "evaluate"):
                    self._keep(stage)
                self.seconds[stage] = self._undisturbed(stage)

    def trial(self, kind: str, rng: np.random.Generator) -> Ending:
        """Run a command, end it, judge."""
        shutil.rmtree(self.out, ignore_errors=True)
        if kind in self.starts:
            shutil.copytree(self.starts[kind], self.out, symlinks=True)
        name = kind.split()[0].rstrip(",")
        with self._inputs(kind) as config:
            slow = kind.startswith("ingest")
            longest = 20.0 if slow else self.seconds[name]
            # Python itself takes a second to start, and is ended at once until it has.
            ending = Ending(kind, round(float(rng.uniform(1.5 if slow else 0.2, longest)), 3))
            self._end(name, config, ending)
        self._judge(name, ending)
        return ending

    def _end(self, name: str, config: Path, ending: Ending) -> None:
        process = self._start(name, config)
        try:
            process.wait(ending.at_s)
        except subprocess.TimeoutExpired:
            mine = _children(process.pid)
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(LIMIT_S + 15)
            except subprocess.TimeoutExpired:
                process.kill()
            _, alive = psutil.wait_procs(mine, timeout=1)
            ending.took_s = round(time.monotonic() - started, 2)
            ending.wrong += [f"{each} still runs" for each in alive]
            for each in alive:
                each.kill()
        _, text = process.communicate()
        code = process.returncode
        ending.status = code if code >= 0 else 128 - code
        if ending.took_s is None:
            if ending.status != 0:
                ending.wrong.append(f"status {ending.status} before the signal: {text[-300:]}")
            return
        lines = text.splitlines()
        ending.forced = bool(lines) and lines[-1].startswith("terminated by force: ")
        if ending.took_s > LIMIT_S:
            ending.wrong.append(f"took {ending.took_s} s")
        if ending.status not in (143, 0):  # 0: the command was done when the signal came
            ending.wrong.append(f"status {ending.status}: {text[-300:]}")
        # Before the command has begun, the system ends it without a line.
        told = [line for line in lines if line.startswith("terminated")]
        if len(lines) > 1 or (ending.status == 143 and lines and not told):
            ending.wrong.append(f"said {lines[-3:]}")

    def _judge(self, name: str, ending: Ending) -> None:
        left = [path.name for path in self.scratch.iterdir() if path.name.startswith("disagg-")]
        if left:
            ending.wrong.append(f"left {left} among the temporary files")
            for path in left:
                shutil.rmtree(self.scratch / path, ignore_errors=True)
        again = self._finish("run")
        if again.returncode:
            ending.wrong.append(f"the next run: {again.returncode} {again.stderr[-300:]}")
        found = {key: digest for key, digest in digests(self.out).items() if "published" not in key}
        names = {key for key in {**found, **self.expected}
                 if found.get(key) != self.expected.get(key)}  # fmt: skip
        if names:
            ending.wrong.append(f"differs: {sorted(names)[:8]}")
        if name == "publish":
            done = self._finish("publish")
            versions = sorted(each.name for each in (self.out / "published/versions").glob("v*"))
            if done.returncode or versions != ["v0001"]:
                ending.wrong.append(f"published {versions}, {done.returncode} {done.stderr[-300:]}")

    @contextlib.contextmanager
    def _inputs(self, kind: str) -> Iterator[Path]:
        """Yield the configuration of a trial: with a raster that hangs, where the kind says so."""
        if not kind.startswith("ingest"):
            yield self.config
            return
        with contextlib.ExitStack() as stack:
            name = sorted(yaml.safe_load(self.config.read_text())["covariates"])[0]
            if kind.endswith("minutes"):
                path = str(self._fine_raster())
            else:
                source = self._far_raster(name)
                server: Any = silent_server() if "opening" in kind else breaking_off(source, 20_000)
                # A TIFF by its name would be copied, by Python; GDAL itself waits in a read.
                path = f"http://127.0.0.1:{stack.enter_context(server)}/{source.stem}"
            data = yaml.safe_load(self.config.read_text())
            data["covariates"][name] |= {"path": path}
            config = self.directory / "hostile.yaml"
            config.write_text(yaml.safe_dump(data))
            yield config

    def _covariate(self, name: str) -> Path:
        return Path(yaml.safe_load(self.config.read_text())["covariates"][name]["path"])

    def _far_raster(self, name: str) -> Path:
        """Write a covariate whose pixels lie far behind its header."""
        path = self.directory / "far.tif"
        with rasterio.open(self._covariate(name)) as src:
            values, profile = src.read(1), src.profile
        if not path.exists():
            above = 500
            moved = profile["transform"] @ profile["transform"].translation(0, -above)
            tall = np.zeros((above + values.shape[0], values.shape[1]), values.dtype)
            tall[above:] = values
            write(path, tall, crs=profile["crs"], transform=moved, nodata=profile["nodata"])
        return path

    def _fine_raster(self) -> Path:
        """Write a covariate so fine that to average it takes minutes: sparse, so a small file."""
        path = self.directory / "fine.tif"
        if not path.exists():
            data = yaml.safe_load(self.config.read_text())
            with rasterio.open(data["population"]["path"]) as src:
                crs, bounds = src.crs, src.bounds
            transform = rasterio.transform.from_bounds(*bounds, _EXTREME, _EXTREME)
            with rasterio.open(
                path, "w", driver="GTiff", width=_EXTREME, height=_EXTREME, count=1,
                dtype="uint8", crs=crs, transform=transform, tiled=True, blockxsize=512,
                blockysize=512, compress="zstd", bigtiff="yes", sparse_ok=True,
            ):  # fmt: skip
                pass
        return path

    def _set(self, **sections: Any) -> None:
        data = yaml.safe_load(self.config.read_text())
        self.config.write_text(yaml.safe_dump(data | sections))

    def _start(self, name: str, config: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", name, str(config), "--quiet"],
            cwd=ROOT, env=self.environ, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _finish(self, name: str) -> subprocess.CompletedProcess[str]:
        process = self._start(name, self.config)
        _, text = process.communicate(timeout=300)
        return subprocess.CompletedProcess(name, process.returncode, "", text)

    def _undisturbed(self, name: str) -> float:
        started = time.monotonic()
        done = self._finish(name)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr}")
        return time.monotonic() - started

    def _keep(self, name: str) -> None:
        self.starts[name] = self.directory / f"before-{name}"
        shutil.copytree(self.out, self.starts[name], symlinks=True)


def _children(number: int) -> list[psutil.Process]:
    """Return the process that does the work of a command: the child of its parent."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(number).children()
    return []


def summary(endings: list[Ending]) -> dict[str, dict[str, Any]]:
    """Count by kind; the seconds from the signal to the end."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        some = [each for each in endings if each.kind == kind]
        took = [each.took_s for each in some if each.took_s is not None]
        found[kind] = {
            "trials": len(some),
            "before_the_signal": sum(each.took_s is None for each in some),
            "terminated": sum(each.status == 143 for each in some),
            "done_all_the_same": sum(each.status == 0 and each.took_s is not None for each in some),
            "forced": sum(each.forced for each in some),
            "median_s": round(float(np.median(took)), 2) if took else None,
            "longest_s": max(took, default=None),
            "wrong": sum(bool(each.wrong) for each in some),
        }
    return found


def main() -> int:
    """Run trials; return 1 where one ended badly."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.terminated", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/terminated.json")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="disagg-terminated-"))
    endings: list[Ending] = []
    try:
        bench = Terminations(directory)
        bench.prepare()
        for number in range(given.count):
            kind = given.only or KINDS[number % len(KINDS)]
            endings.append(bench.trial(kind, np.random.default_rng([given.seed, number])))
            print(f"{number + 1}/{given.count} {endings[-1]}", flush=True)
            told = {
                "command": f"python -m tests.faults.terminated --count {given.count}",
                "seed": given.seed,
                "limit_s": LIMIT_S,
                "cores": len(os.sched_getaffinity(0)),
                "note": "the machine was shared with other work",
                "undisturbed_s": {k: round(v, 1) for k, v in bench.seconds.items()},
                "by_kind": summary(endings),
                "trials": [asdict(each) for each in endings],
            }
            given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return int(any(each.wrong for each in endings))


if __name__ == "__main__":
    sys.exit(main())
