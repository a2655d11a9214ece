"""Run one flow inside the image's root, as a container of a work pool would.

python flow_in_image.py CONFIG
"""

import json
import os
import subprocess
import sys
import time
import urllib.request

URL = "http://127.0.0.1:4200/api"
os.environ["PREFECT_API_URL"] = URL


def api(path: str, body: object = None) -> dict:
    """Ask the server."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        URL + path, data, {"Content-Type": "application/json"} if data else {}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


def main() -> int:
    """Start a server, deploy the map, create a run, execute it by Prefect's own command."""
    server = subprocess.Popen(["prefect", "server", "start"], stdout=sys.stderr)
    try:
        for _ in range(240):
            try:
                api("/health")
                break
            except OSError:
                time.sleep(0.5)
        python = [sys.executable, "-m", "flows.deploy", sys.argv[1]]
        name = subprocess.run(python, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        deployment = api(f"/deployments/name/{name}")["id"]
        run = api(f"/deployments/{deployment}/create_flow_run", {"state": {"type": "PENDING"}})
        environment = {**os.environ, "PREFECT__FLOW_RUN_ID": run["id"]}
        subprocess.run(["prefect", "flow-run", "execute"], env=environment, stdout=sys.stderr)
        print(json.dumps(api(f"/flow_runs/{run['id']}")["state"]))
        return 0
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
