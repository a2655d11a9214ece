"""Server, worker, schedule and watch on one machine, until interrupted.

    python -m flows.serve CONFIG... [--cron "0 6 * * *"] [--port 4200] [--limit 2] [--every 60]

The server keeps its records in SQLite, or in PostgreSQL where
``PREFECT_API_DATABASE_CONNECTION_URL`` says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack

from flows.processes import Child, end_on_signals, wait_for_url
from geo.errors import InputError
from pipeline.updates.map_run import check_names


def main() -> int:
    """Start everything; stop it again, whatever ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="+")
    parser.add_argument("--cron", default="0 6 * * *", help="when, by five fields")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="4200")
    parser.add_argument("--limit", default="2", help="runs at the same time")
    parser.add_argument("--every", default="60", help="seconds between looks for new counts")
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
        children.enter_context(Child("server", [*prefect, "server", "start", *where]))
        wait_for_url(f"{url}/api/health")
        from flows.deploy import POOL, deploy  # Prefect reads its settings when it is imported

        for config in options.config:
            print(f"{deploy(config, options.cron)}: {options.cron}", flush=True)
        pool = ["--pool", POOL, "--type", "process", "--limit", options.limit]
        worker = Child("worker", [*prefect, "worker", "start", *pool])
        children.enter_context(worker)
        look = [sys.executable, "-m", "flows.watch", *options.config, "--every", options.every]
        children.enter_context(Child("watch", look))
        print(f"open {url}; Ctrl-C ends it", flush=True)
        return worker.wait()


if __name__ == "__main__":
    sys.exit(main())
