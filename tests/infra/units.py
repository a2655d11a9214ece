"""Units of infra/systemd as plain processes: what systemd would start, without systemd."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def umask(name: str) -> int:
    """Return the UMask of a unit."""
    (value,) = re.findall(r"^UMask=(\d+)$", (ROOT / "infra/systemd" / name).read_text(), re.M)
    return int(value, 8)


class Units:
    """Processes of units, with directories of their own in place of /etc/disagg and /var/lib.

    Parameters
    ----------
    directory : path
    settings : mapping
        Variables that /etc/disagg/disagg.env would hold.
    """

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.directory, self.settings = directory, settings
        self.secrets, self.state = directory / "secrets", directory / "state/disagg"
        self.state.mkdir(parents=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def parse(self, name: str, instance: str = "") -> tuple[list[list[str]], dict[str, str]]:
        """Return the commands and the environment of a unit."""
        path = ROOT / "infra/systemd" / name
        text = re.sub(r"\\\n\s*", "", path.read_text())
        pairs = re.findall(r"^(\w+)=(.*)$", text, re.M)
        credentials = self.directory / "credentials" / f"{path.stem}{instance}"
        credentials.mkdir(parents=True, exist_ok=True)
        for key, value in pairs:
            if key == "LoadCredential":
                short, _, source = value.partition(":")
                held = self.secrets / source.removeprefix("/etc/disagg/secrets/")
                (credentials / short).write_bytes(held.read_bytes())
        places = {"%S/disagg": self.state, "%d": credentials, "%i": instance, "%N": path.stem}
        places["%H"] = socket.gethostname()

        def placed(value: str) -> str:
            for mark, place in places.items():
                value = value.replace(mark, str(place))
            return value

        environment = {"CREDENTIALS_DIRECTORY": str(credentials)}
        for key, value in pairs:
            if key == "Environment":
                environment |= dict(each.split("=", 1) for each in shlex.split(placed(value)))
        scripts = sysconfig.get_path("scripts")
        environment["PATH"] = f"{scripts}:{os.environ['PATH']}"
        environment["PYTHONPATH"] = str(ROOT)
        environment |= self.settings
        commands = []
        for value in (placed(value) for key, value in pairs if key == "ExecStart"):
            words = []
            for word in shlex.split(value):
                if re.fullmatch(r"\$\w+", word):  # $NAME alone is split into words
                    words += environment[word[1:]].split()
                else:
                    words.append(re.sub(r"\$\{(\w+)\}", lambda m: environment[m[1]], word))
            assert words[0] == "/opt/disagg/bin/entry"
            commands.append(["sh", str(ROOT / "infra/image/entry.sh"), *words[1:]])
        return commands, environment

    def start(self, name: str, instance: str = "") -> subprocess.Popen[bytes]:
        """Start the (last) command of a unit."""
        commands, environment = self.parse(name, instance)
        where = self.directory / "run" / f"{Path(name).stem}{instance}"
        where.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{Path(name).stem}{instance}.log").open("ab") as log:
            streams = {"stdout": log, "stderr": log}
            process = subprocess.Popen(
                commands[-1],
                env=environment,
                cwd=where,
                umask=umask(name),
                start_new_session=True,
                **streams,
            )
        self.processes[f"{name}{instance}"] = process
        return process

    def run(self, name: str, instance: str = "") -> list[int]:
        """Run the commands of a unit one after another until one fails; return their statuses."""
        commands, environment = self.parse(name, instance)
        statuses = []
        for command in commands:
            done = subprocess.run(command, env=environment, cwd=self.directory, umask=umask(name))
            statuses.append(done.returncode)
            if statuses[-1]:
                break
        return statuses

    def stop(self) -> None:
        """Stop what runs, as systemd does: SIGTERM, then SIGKILL after TimeoutStopSec."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
