"""Run server, worker, schedule and watch on one machine until interrupted.

    python -m flows.serve CONFIG... [--cron "0 6 * * *"] [--port 4200] [--limit 2] [--every 60]

The server stores its records in SQLite, or in the PostgreSQL database of
``PREFECT_API_DATABASE_CONNECTION_URL``.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack

from flows.processes import ChildProcess, end_on_signals, wait_for_url
from geo.errors import InputError
from pipeline.updates.map_run import check_names


def main() -> int:
    """Start all processes; stop them at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="+")
    parser.add_argument("--cron", default="0 6 * * *", help="schedule of the updates (five fields)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="4200")
    parser.add_argument("--limit", default="2", help="concurrent runs")
    parser.add_argument("--every", default="60", help="seconds between two checks for new counts")
    options = parser.parse_args()
    end_on_signals()
    try:
        check_names(options.config)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    url = f"http://{options.host}:{options.port}"
    os.environ["PREFECT_API_URL"] = f"{url}/api"
    prefect = [sys.executable, "-m", "prefect"]
    with ExitStack() as children:
        where = ["--host", options.host, "--port", options.port]
        children.enter_context(ChildProcess("server", [*prefect, "server", "start", *where]))
        wait_for_url(f"{url}/api/health")
        from flows.deploy import POOL, deploy  # importing Prefect reads PREFECT_API_URL

        for config in options.config:
            print(f"{deploy(config, options.cron)}: {options.cron}", flush=True)
        pool = ["--pool", POOL, "--type", "process", "--limit", options.limit]
        worker = ChildProcess("worker", [*prefect, "worker", "start", *pool])
        children.enter_context(worker)
        watch = [sys.executable, "-m", "flows.watch", *options.config, "--every", options.every]
        children.enter_context(ChildProcess("watch", watch))
        print(f"open {url}; press Ctrl-C to stop", flush=True)
        return worker.wait()


if __name__ == "__main__":
    sys.exit(main())
