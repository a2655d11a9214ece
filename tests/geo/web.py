"""A web server in a process of its own (GDAL holds the interpreter's lock while it waits)."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SERVE = """
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, form, *args):
        with open(sys.argv[2], "a") as log:
            log.write(self.command + " " + self.path + "\\n")
    def do_GET(self):
        wanted = self.headers.get("Range")
        path = self.translate_path(self.path)
        if wanted and __import__("os").path.isfile(path):
            data = open(path, "rb").read()
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last or len(data)) + 1]
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Content-Range", f"bytes {first}-{int(first)+len(part)-1}/{len(data)}")
            self.end_headers()
            self.wfile.write(part)
            return
        super().do_GET()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@dataclass
class Web:
    """A served folder; ``asked()`` lists the requests so far."""

    folder: Path
    url: str
    log: Path

    def asked(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


@contextlib.contextmanager
def serving(folder: Path, log: Path):
    """Serve a folder at 127.0.0.1."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(folder), str(log)],
        cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        port = int(process.stdout.readline())
        yield Web(folder, f"http://127.0.0.1:{port}", log)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
