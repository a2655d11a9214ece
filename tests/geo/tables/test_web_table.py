"""Tables at web addresses are read as local ones, with the login that the address has."""

import base64
import http.server

import pytest

from geo.core.errors import InputError
from geo.tables import web_table
from geo.tables.registry import read_table
from tests.servers import running


class Tables(http.server.BaseHTTPRequestHandler):
    """Serves a table to those who log in."""

    def do_GET(self):
        token = base64.b64encode(b"me:s3c ret").decode()
        if self.headers.get("Authorization") != f"Basic {token}":
            self.send_error(401)
            return
        body = b"code,cases\nA,1\nB,2\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def port():
    with running(http.server.HTTPServer(("127.0.0.1", 0), Tables)) as number:
        yield number


def test_the_login_of_the_address_is_used(port):
    table, rows = read_table(f"http://me:s3c%20ret@127.0.0.1:{port}/cases.csv?v=1", "counts")
    assert table["cases"].tolist() == ["1", "2"]
    assert rows.tolist() == [2, 3]


def test_a_refusal_is_one_line(port):
    with pytest.raises(InputError, match="401"):
        read_table(f"http://127.0.0.1:{port}/cases.csv", "counts")


def test_an_endless_table_is_refused(port, monkeypatch):
    monkeypatch.setattr(web_table, "BYTES_MAX", 10)
    with pytest.raises(InputError, match="has more than 10 bytes"):
        read_table(f"http://me:s3c%20ret@127.0.0.1:{port}/cases.csv", "counts")
