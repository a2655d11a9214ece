"""Run server, worker, schedule and watch on one machine until interrupted.

    python -m flows.serve CONFIG... [--cron "0 6 * * *"] [--port 4200] [--limit 2] [--every 60]

A server, worker or watch that ends is started again; a line on standard error and a notification
(`notify.on: failure`, one an hour at most) say so. The server stores its records in SQLite, or in
the PostgreSQL database of PREFECT_API_DATABASE_CONNECTION_URL. It asks for the login of
PREFECT_API_AUTH_STRING ("user:password"), by default for one that it makes and keeps in
PREFECT_HOME/disagg-login; without a login of yours it listens on this machine alone.

Exit status: 0 ended by a signal, 1 a process did not start, 2 bad input (a port in use).
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from flows.full_home import Spoken
from flows.login import LOGIN, login_file, made_login, prefect_home, stored_login
from flows.processes import (
    ChildProcess,
    StartError,
    end_on_signals,
    is_free,
    stop_all,
    supervise,
    wait_for_url,
)
from geo.core.errors import InputError, Problem
from pipeline.core.exit_status import ExitStatus
from pipeline.storage.lock import Lock, LockedError
from pipeline.updates.arrivals import load_watched
from pipeline.updates.attended import notify_end
from pipeline.updates.map_run import check_maps

SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
NOTIFY_S = 3600.0
_PORT_S = 10.0  # in which the server of a supervisor that was killed gives its port back


def main(arguments: list[str] | None = None) -> int:
    """Start all processes, keep them running; stop them at the end."""
    options = _parser().parse_args(arguments)
    end_on_signals()
    children: list[ChildProcess] = []
    try:
        with ExitStack() as stack:
            check_maps(options.config)
            host, port = options.host, int(options.port)
            login = _login(host)
            stack.enter_context(_only_one())
            _check_port(host, port)
            stack.callback(stop_all, children)
            children.extend(_start(options, login))
            print(f"open http://{host}:{port}; press Ctrl-C to stop", flush=True)
            if login == stored_login():
                print(f"its login (user:password) is in {login_file()}", flush=True)
            supervise(children, _teller(options.config))
    except KeyboardInterrupt:
        return ExitStatus.DONE
    except (InputError, ValueError) as error:  # ValueError: the cron expression, a port
        print(f"error: {error}", file=sys.stderr)
        return ExitStatus.BAD_INPUT
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitStatus.DEFECT
    return ExitStatus.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="+")
    parser.add_argument("--cron", default="0 6 * * *", help="schedule of the updates (five fields)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="4200")
    parser.add_argument("--limit", default="2", help="concurrent runs")
    parser.add_argument("--every", default="60", help="seconds between two checks for new counts")
    return parser


def _start(options: argparse.Namespace, login: str) -> list[ChildProcess]:
    """Start server, worker and watch, and deploy the maps; return the processes.

    If one does not start, those before it are stopped.
    """
    url = f"http://{options.host}:{options.port}"
    os.environ["PREFECT_API_URL"] = f"{url}/api"
    environ = dict(os.environ)
    say = Spoken(prefect_home())
    prefect = [sys.executable, "-m", "prefect"]
    where = ["--host", options.host, "--port", options.port]
    server = ChildProcess(
        "server",
        [*prefect, "server", "start", *where],
        {**environ, SERVER_LOGIN: login, **_shut_to_other_pages(url)},
        alone=True,
        say=say,
    )
    pool = ["--pool", "maps", "--type", "process", "--limit", options.limit]
    worker = ChildProcess("worker", [*prefect, "worker", "start", *pool], environ, say=say)
    seen = [*options.config, "--every", options.every]
    watch = ChildProcess("watch", [sys.executable, "-m", "flows.watch", *seen], environ, say=say)
    children = [server, worker, watch]
    try:
        server.start()
        wait_for_url(f"{url}/api/health", server)
        from flows.deploy import SERVED, deploy, unschedule  # importing reads PREFECT_API_URL

        served = [deploy(each, options.cron, tags=[SERVED]) for each in options.config]
        for name in served:
            print(f"{name}: {options.cron}", flush=True)
        for name in unschedule(served):
            print(f"{name}: not among the configurations; its schedule is removed", flush=True)
        worker.start()
        watch.start()
    except BaseException:
        stop_all(children)
        raise
    return children


def _shut_to_other_pages(url: str) -> dict[str, str]:
    """Return settings of the server: its own page alone may speak to it, and to nobody else."""
    return {
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": url,
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # The second version of the page calls a service of usage statistics when it opens.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
    }


def _login(host: str) -> str:
    """Return user and password of the server, and set them for its clients.

    Raises
    ------
    InputError
        If other machines could reach a server whose login nobody chose, or none can be kept.
    """
    login = os.environ.get(LOGIN) or os.environ.pop(SERVER_LOGIN, None)
    os.environ.pop(SERVER_LOGIN, None)
    if login and login != stored_login():
        if ":" not in login:
            found = "not of the form user:password"
            raise InputError(Problem(LOGIN, found, "set it to a user, a colon and a password"))
        os.environ[LOGIN] = login
        return login
    if not _is_loopback(host):
        found = "other machines reach the server, and you gave it no login"
        remedy = f"set {LOGIN} to user:password, and put TLS before it (docs/security.md)"
        raise InputError(Problem(f"--host {host}", found, remedy))
    try:
        login = made_login()
    except OSError as error:
        found = f"the login cannot be kept there ({error.strerror or error})"
        remedy = f"remove it, or set {LOGIN} to user:password"
        raise InputError(Problem(str(login_file()), found, remedy)) from error
    os.environ[LOGIN] = login
    return login


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _only_one() -> ExitStack:
    """Hold the lock of Prefect's directory: two servers would share one database.

    Raises
    ------
    InputError
        If another `flows.serve` runs there.
    """
    home = prefect_home()
    stack = ExitStack()
    try:
        stack.enter_context(Lock(home / "disagg-serve.lock").hold("flows.serve"))
    except LockedError as locked:
        found = f"{locked.owner} runs already"
        remedy = "give it all configurations, or set another PREFECT_HOME and another --port"
        raise InputError(Problem(str(home), found, remedy)) from None
    except OSError as error:
        found = f"cannot be written to ({error.strerror or error})"
        raise InputError(Problem(str(home), found, "set PREFECT_HOME")) from error
    return stack


def _check_port(host: str, port: int) -> None:
    end = time.monotonic() + _PORT_S
    while not is_free(host, port):
        if time.monotonic() > end:
            found = "in use by another program, or no address of this machine"
            remedy = "stop that program, or give another --port"
            raise InputError(Problem(f"--port {port} of {host}", found, remedy))
        time.sleep(0.5)


def _teller(configs: list[str]) -> Callable[[ChildProcess, str], None]:
    """Return a function that reports a dead process: at once here, rarely by notification."""
    notified: dict[str, float] = {}

    def tell(child: ChildProcess, line: str) -> None:
        print(f"serve: {line}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - notified.get(child.name, -NOTIFY_S) < NOTIFY_S:
            return
        notified[child.name] = now
        for config in configs:
            try:
                loaded = load_watched(config)
            except InputError as error:
                print(f"serve: no notification was sent: {error}", file=sys.stderr, flush=True)
                continue
            for trouble in notify_end(loaded, "failure", "Restarted", line):
                print(f"serve: {trouble}", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    sys.exit(main())
