"""Hosts of a network on one machine: network namespaces with addresses of their own, on one bridge.

The process that makes them must be in namespaces of its own (:func:`run_alone`): the bridge is
there, with the address of the driver, and everything goes with it, also when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PREFIX = "10.77.0"


def permitted() -> str | None:
    """Say why there can be no network namespaces here; None if there can."""
    missing = [name for name in ("ip", "tc", "unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    tried = ["unshare", "--net", "sh", "-c", "ip link add v type bridge && ip link set lo up"]
    done = subprocess.run(tried, capture_output=True, text=True)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


def run_alone(module: str, arguments: Sequence[str]) -> int:
    """Run a module of ours in a network of its own, of which nothing stays when it ends.

    The kernel kills all processes of a process namespace with its first one, that one with
    ``unshare``, and ``unshare`` with this process. Names of network namespaces are files, on a file
    system in memory.
    """
    inside = (
        "mount --make-rprivate / && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && "
        'exec "$@"'
    )
    # subprocess.run kills its child on an exception.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid"),
                *("--fork", "--kill-child", "--mount-proc"),
                *("sh", "-ec", inside, "sh", sys.executable, "-m", module, *arguments),
            ],
            env={**os.environ, "DISAGG_ALONE": "1", "TMPDIR": directory},
        ).returncode


def _ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Host:
    """A namespace with an address, and the processes that run in it.

    Parameters
    ----------
    name : str
    number : int
        Last part of its address.
    directory : path
        For the processes' messages.
    """

    def __init__(self, name: str, number: int, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.address = f"{PREFIX}.{number}"
        self.space, self.port = f"disagg-{os.getpid()}-{number}", f"port{number}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def make(self) -> None:
        """Make the namespace, and a cable from it to the bridge."""
        _ip("netns", "add", self.space)
        _ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        _ip("link", "set", self.port, "master", "bridge", "up")
        _ip("-n", self.space, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.space, "link", "set", "eth0", "up")
        _ip("-n", self.space, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Kill what runs there, and remove the namespace."""
        self.kill()
        subprocess.run(["ip", "netns", "delete", self.space], capture_output=True)

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process on this host."""
        inside = ["ip", "netns", "exec", self.space, *command]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                inside,
                env={**os.environ, **(env or {})},
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def kill(self) -> None:
        """Lose all processes at once, as with the power."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        for process in self.processes:
            process.wait()
        self.processes.clear()

    def cut(self, *, off: bool = True) -> None:
        """Pull the cable, or put it back: nobody is told, packets no longer arrive."""
        _ip("link", "set", self.port, "nomaster" if off else "up")
        if not off:
            _ip("link", "set", self.port, "master", "bridge")

    def slow(self, delay_ms: int, rate_mbit: int) -> str:
        """Delay packets and limit the rate, in both directions; return what was done.

        A kernel without netem limits the rate alone.
        """
        ways = {
            f"{delay_ms} ms each way, {rate_mbit} Mbit/s": (
                *("netem", "delay", f"{delay_ms}ms", "rate", f"{rate_mbit}mbit"),
            ),
            f"{rate_mbit} Mbit/s (no delay: this kernel has no netem)": (
                *("tbf", "rate", f"{rate_mbit}mbit", "burst", "64kb", "latency", "400ms"),
            ),
        }
        for name, words in ways.items():
            here = ["tc", "qdisc", "replace", "dev", self.port, "root", *words]
            there = ["tc", "-n", self.space, "qdisc", "replace", "dev", "eth0", "root", *words]
            done = [subprocess.run(each, capture_output=True).returncode for each in (here, there)]
            if done == [0, 0]:
                return name
        message = "tc can neither delay packets nor limit a rate here"
        raise SystemExit(message)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes so far that the host has received and sent."""
        where = Path("/sys/class/net") / self.port / "statistics"
        # Counted at the bridge's end of the cable.
        received, sent = ((where / name).read_text() for name in ("tx_bytes", "rx_bytes"))
        return int(received), int(sent)


@contextlib.contextmanager
def network(names: Sequence[str], directory: Path) -> Iterator[dict[str, Host]]:
    """Make hosts on one bridge; this process has the address ``PREFIX.1``."""
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "bridge", "type", "bridge")
    _ip("address", "add", f"{PREFIX}.1/24", "dev", "bridge")
    _ip("link", "set", "bridge", "up")
    hosts = {name: Host(name, number, directory) for number, name in enumerate(names, 2)}
    try:
        for host in hosts.values():
            host.make()
        yield hosts
    finally:
        for host in hosts.values():
            host.remove()
        _ip("link", "delete", "bridge")
