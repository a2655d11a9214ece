"""The small country across several hosts; one is cut off, slowed or lost.

    python -m benchmarks.hosts [--quick] [--only NAME...] [--out FILE]

The driver, a Dask scheduler, two workers and an S3 store each have a network namespace with an
address of its own (root is needed). Configuration, inputs, stores and results are on the bucket.
Dask and the store speak TLS. In each trial a run is disturbed in the middle of its fit; its maps
are compared, byte by byte, with those of a run on one machine with local files. ``--quick``
shortens the fit and leaves out slow trials.

Also measures what a step of a fit sends to each worker and back, as the network counts it.

Writes ``benchmarks/results/hosts.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.host_network import PREFIX, Host, network, permitted, run_alone
from benchmarks.report import RESULTS, parsed, read_results, write_results

ROOT = Path(__file__).parents[1]
NAMES = ("store", "scheduler", "first", "second")
MAPS = ("rate_mean.tif", "rate_sd.tif", "rate_lower.tif", "rate_upper.tif", "areas.csv")
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
WAIT_S = 20  # compute.wait
LIMIT_S = 900.0


class Site:
    """All hosts with their programs, and the bucket with the country."""

    def __init__(self, hosts: dict[str, Host], directory: Path, country: Path) -> None:
        self.hosts, self.directory, self.country = hosts, directory, country
        self.endpoint = f"https://{hosts['store'].address}:9000"
        self.scheduler = f"tls://{hosts['scheduler'].address}:8786"
        self.certificates = directory / "tls"
        self.n_run = 0
        os.environ |= {
            **KEYS,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_CA_BUNDLE": str(self.certificates / "ca.pem"),
        }

    def make_certificates(self) -> None:
        """Make the authority and one certificate, valid for the store's address too."""
        script = ROOT / "infra/certificates.sh"
        where = ["IP:" + host.address for host in self.hosts.values()]
        subprocess.run(
            ["sh", str(script), str(self.certificates), "2"],
            env={**os.environ, "NAMES": ",".join(where)},
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def start_store(self) -> None:
        """Start the S3 server on its host, with the country in a bucket."""
        host = self.hosts["store"]
        tls = ["-c", str(self.certificates / "cert.pem"), "-k", str(self.certificates / "key.pem")]
        host.start(sys.executable, "-m", "moto.server", "-H", host.address, "-p", "9000", *tls)
        _until("the store", lambda: self.ask("PUT", "/maps"))
        for path in filter(Path.is_file, self.country.iterdir()):
            self.ask("PUT", f"/maps/my/{path.name}", path.read_bytes())

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Speak with the store."""
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        asked = urllib.request.Request(self.endpoint + path, body, method=method)
        mark = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"
        asked.add_header("Authorization", mark)
        asked.add_header("Content-Type", "application/octet-stream")
        with urllib.request.urlopen(asked, context=context, timeout=20) as answer:
            data: bytes = answer.read()
        return data

    def start_cluster(self) -> None:
        """Start the scheduler and two workers anew, each on its host."""
        for name in NAMES[1:]:
            self.hosts[name].kill()
        tls = [f"--tls-{key}={self.certificates / name}.pem" for key, name in _TLS]
        dask = [sys.executable, "-m", "dask"]
        self.hosts["scheduler"].start(
            *dask, "scheduler", "--protocol=tls", "--port=8786", "--no-dashboard", *tls
        )
        for name in ("first", "second"):
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start a worker on a host."""
        tls = [f"--tls-{key}={self.certificates / file}.pem" for key, file in _TLS]
        options = ["--nworkers=1", "--nthreads=1", "--memory-limit=1GiB", "--no-dashboard"]
        self.hosts[name].start(
            *(sys.executable, "-m", "dask", "worker", self.scheduler),
            *(*options, f"--local-directory={self.directory / name}", *tls),
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def run(self) -> tuple[subprocess.Popen[bytes], str]:
        """Start a run whose results have a prefix of their own."""
        self.n_run += 1
        out = f"out{self.n_run}"
        text = (self.country / "disagg.yaml").read_text()
        tls = ", ".join(f"{key}: {self.certificates / key}.pem" for key in ("ca", "cert", "key"))
        compute = f"compute: {{scheduler: '{self.scheduler}', wait: {WAIT_S}, tls: {{{tls}}}}}"
        text = re.sub("compute: .*", compute, text).replace("dir: out", f"dir: {out}")
        text += f"\nstorage: {{scratch: {self.directory / out}}}\nupdate: {{retry_delay_s: 2}}\n"
        self.ask("PUT", f"/maps/my/{out}.yaml", text.encode())
        return self.command(out), out

    def command(self, out: str) -> subprocess.Popen[bytes]:
        """Start, or go on with, a run."""
        with (self.directory / f"{out}.log").open("ab") as log:
            command = [sys.executable, "-m", "pipeline.cli", "run", f"s3://maps/my/{out}.yaml"]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)

    def in_fit(self, out: str, run: subprocess.Popen[bytes]) -> None:
        """Wait until the fit has written a checkpoint, then a moment more."""

        def there() -> bool:
            if run.poll() is not None:
                message = (
                    f"the run has ended too early: {(self.directory / f'{out}.log').read_text()}"
                )
                raise SystemExit(message)
            return b"<Key>" in self.ask(
                "GET", f"/maps?list-type=2&prefix=my/{out}/work/checkpoint/epoch"
            )

        _until("a checkpoint", there, 300)
        time.sleep(0.5)

    def differences(self, out: str, reference: Path) -> list[str]:
        """Return the maps that are not, byte by byte, those of the run on one machine."""
        found = []
        for name in MAPS:
            try:
                same = self.ask("GET", f"/maps/my/{out}/{name}") == (reference / name).read_bytes()
            except OSError:
                same = False
            found += [] if same else [name]
        return found


_TLS = (("ca-file", "ca"), ("cert", "cert"), ("key", "key"))


def _until(what: str, done: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if done() is not False:
                return
        if time.monotonic() > end:
            message = f"{what} did not come within {seconds:g} s"
            raise SystemExit(message)
        time.sleep(0.05)


# -- what happens to hosts -------------------------------------------------------------------------


def nothing(site: Site) -> None:
    """Disturb nobody."""


def cut_worker(site: Site) -> None:
    """Pull a worker's cable: it goes on computing, and says nothing."""
    site.hosts["first"].cut()


def cut_worker_shortly(site: Site) -> None:
    """Pull a worker's cable, and put it back after ten seconds."""
    site.hosts["first"].cut()
    time.sleep(10)
    site.hosts["first"].cut(off=False)


def slow_worker(site: Site) -> str:
    """Put a worker behind a slow line."""
    return site.hosts["first"].slow(50, 20)


def lose_worker(site: Site) -> None:
    """Take the power from a worker's host: nobody closes its connections."""
    site.hosts["first"].cut()
    site.hosts["first"].kill()


def replace_worker(site: Site) -> None:
    """Take the power from a worker's host; it is back two seconds later, with a new worker."""
    lose_worker(site)
    time.sleep(2)
    site.hosts["first"].cut(off=False)
    site.start_worker("first")


def cut_store(site: Site) -> None:
    """Pull the store's cable, and put it back after eight seconds."""
    site.hosts["store"].cut()
    time.sleep(8)
    site.hosts["store"].cut(off=False)


def lose_scheduler(site: Site) -> None:
    """Take the power from the whole cluster; a new one is there five seconds later."""
    for name in ("scheduler", "first", "second"):
        site.hosts[name].cut()
        site.hosts[name].kill()
    time.sleep(5)
    for name in ("scheduler", "first", "second"):
        site.hosts[name].cut(off=False)
    site.start_cluster()


TRIALS: dict[str, Callable[[Site], str | None]] = {
    each.__name__: each
    for each in (
        *(nothing, lose_worker, replace_worker, cut_worker, cut_worker_shortly),
        *(slow_worker, cut_store, lose_scheduler),
    )
}
QUICK = ("nothing", "lose_worker")


def trial(site: Site, name: str, reference: Path) -> dict[str, Any]:
    """Make a run, disturb it, and go on with it if it ended; compare its maps."""
    site.start_cluster()
    started = time.monotonic()
    run, out = site.run()
    statuses, at, how = [], None, None
    if name != "nothing":
        site.in_fit(out, run)
        at = time.monotonic() - started
        how = TRIALS[name](site)
    statuses.append(_ended(run))
    if statuses[-1] == 75:  # told to try again
        statuses.append(_ended(site.command(out)))
    seconds = time.monotonic() - started
    for host in site.hosts.values():
        with contextlib.suppress(subprocess.CalledProcessError):
            host.cut(off=False)
        subprocess.run(["tc", "qdisc", "delete", "dev", host.port, "root"], capture_output=True)
        inside = ["tc", "-n", host.space, "qdisc", "delete", "dev", "eth0", "root"]
        subprocess.run(inside, capture_output=True)
    log = (site.directory / f"{out}.log").read_text().splitlines()
    told = [line for line in log if line.startswith("error:") or "retry" in line]
    return {
        "about": str(TRIALS[name].__doc__) + (f" {how}." if how else ""),
        "load": round(os.getloadavg()[0], 1),
        "disturbed_after_s": None if at is None else round(at, 1),
        "seconds": round(seconds, 1),
        "statuses": statuses,
        "told": [line.replace(str(site.directory), "...") for line in told],
        "differs": site.differences(out, reference),
    }


def _ended(run: subprocess.Popen[bytes]) -> int:
    try:
        return run.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        return -9


# -- bytes of a step -------------------------------------------------------------------------------


def step_bytes(site: Site, n_step: int = 40) -> dict[str, Any]:
    """Count what steps of empty blocks send to each worker and back."""
    import numpy as np
    from distributed import Client
    from distributed.security import Security

    from benchmarks.coordination import N_BLOCK, N_DIM, Empty, empty_store
    from pipeline.store.block_source import StoreBlockSource
    from pipeline.training.dask_executor import DaskExecutor

    site.start_cluster()
    files = {name: str(site.certificates / f"{name}.pem") for name in ("ca", "cert", "key")}
    security = Security(
        tls_ca_file=files["ca"],
        tls_client_cert=files["cert"],
        tls_client_key=files["key"],
        require_encryption=True,
    )
    found = {}
    store = empty_store(site.directory / "empty.zarr")
    source = StoreBlockSource(store)
    workers = [site.hosts["first"], site.hosts["second"]]
    with Client(site.scheduler, security=security, timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
        for size in (8, 200, 576):
            rng = np.random.default_rng(size)
            square = rng.normal(size=(size, size))
            params = {
                "q": square + square.T,
                "w": rng.normal(size=(size, N_DIM)),
                "alpha": rng.normal(size=size),
            }
            with DaskExecutor(Empty(n_inducing=size), source, client) as executor:
                for _ in range(3):
                    executor.sum(params, [0, N_BLOCK // 2])
                before = [host.traffic() for host in workers]
                started = time.perf_counter()
                for _ in range(n_step):
                    executor.sum(params, [0, N_BLOCK // 2])
                seconds = time.perf_counter() - started
                after = [host.traffic() for host in workers]
            moved = [
                [(b - a) / n_step for a, b in zip(x, y, strict=True)]
                for x, y in zip(before, after, strict=True)
            ]
            found[str(size)] = {
                "arrays": sum(each.nbytes for each in params.values()),
                "to_a_worker": round(max(each[0] for each in moved)),
                "from_a_worker": round(max(each[1] for each in moved)),
                "ms_a_step": round(1e3 * seconds / n_step, 2),
            }
            print("bytes a step", size, found[str(size)], flush=True)
    return found


# -- the program -----------------------------------------------------------------------------------


def make_country(directory: Path, *, quick: bool) -> Path:
    """Simulate the small country, and run it on this machine with local files."""
    disagg = [sys.executable, "-m", "pipeline.cli"]
    config = directory / "disagg.yaml"
    if not config.exists():
        subprocess.run([*disagg, "demo", str(directory), "--quiet"], check=True)
        # Held-out areas are no matter of hosts: without them a trial takes a third of the time.
        evaluate = "evaluate: {schemes: [], calibration: none}"
        text = re.sub("evaluate: .*", evaluate, config.read_text())
        if quick:
            text = text.replace("max_epochs: 200", "max_epochs: 6")
            text = text.replace("draws: 500", "draws: 60")
        config.write_text(text)
    # Made again where the code has changed since: the maps bear its fingerprint.
    subprocess.run([*disagg, "run", str(config), "--quiet"], check=True)
    return directory / "out"


@contextlib.contextmanager
def _site(directory: Path, country: Path) -> Iterator[Site]:
    with network(NAMES, directory) as hosts:
        site = Site(hosts, directory, country)
        site.make_certificates()
        site.start_store()
        yield site


def main() -> int:
    """Make all trials; return 1 if a map differs or a run failed."""
    options = parsed(
        __doc__,
        quick=False,
        only={"nargs": "+", "choices": [*TRIALS, "bytes"]},
        out=RESULTS / "hosts.json",
        country={"type": Path, "help": "keep the country there for the next time"},
    )
    if (why := permitted()) is not None:
        print(f"error: {why}", file=sys.stderr)
        return 2
    if "DISAGG_ALONE" not in os.environ:
        return run_alone("benchmarks.hosts", sys.argv[1:])
    names = options.only or [*(QUICK if options.quick else TRIALS), "bytes"]
    result: dict[str, Any] = {"quick": options.quick, "hosts": f"{PREFIX}.1 to .5", "trials": {}}
    if options.only and options.out.is_file():  # the other trials stay
        result = read_results(options.out) | {"quick": options.quick}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        country = options.country or directory / "country"
        reference = make_country(country, quick=options.quick)
        with _site(directory, country) as site:
            for name in names:
                if name == "bytes":
                    result["bytes_a_step"] = step_bytes(site)
                    continue
                result["trials"][name] = found = trial(site, name, reference)
                print(name, json.dumps(found), flush=True)
                write_results(options.out, result)
            write_results(options.out, result)
        shutil.rmtree(directory / "country", ignore_errors=True)
    made = {name: result["trials"][name] for name in names if name != "bytes"}
    failed = [n for n, each in made.items() if each["differs"] or each["statuses"][-1] != 0]
    if failed:
        print(f"error: {', '.join(failed)}: maps differ, or a run did not end", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
