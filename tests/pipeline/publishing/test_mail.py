"""Mail is encrypted unless the configuration says otherwise, and no text breaks its headers."""

import contextlib
import datetime
import socketserver
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from geo.core.errors import InputError
from pipeline.config.schema import Config
from pipeline.publishing.notify import send_notification
from tests.servers import running


class Server(socketserver.StreamRequestHandler):
    """A mail server that speaks as much SMTP as a message needs."""

    def handle(self):
        self.say(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line.strip().upper()
            self.server.got.append(line.decode(errors="replace"))
            if word.startswith(b"EHLO"):
                offers = (
                    b"" if self.server.tls is None or self.server.secure else b"250-STARTTLS\r\n"
                )
                self.say(b"250-here\r\n" + offers + b"250 8BITMIME\r\n")
            elif word == b"STARTTLS":
                self.say(b"220 go on\r\n")
                self.request = self.server.tls.wrap_socket(self.request, server_side=True)
                self.server.secure = True
                self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb")
            elif word == b"DATA":
                self.say(b"354 go on\r\n")
                self.server.mail.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self.say(b"250 ok\r\n")
            elif word == b"QUIT":
                self.say(b"221 bye\r\n")
                return
            else:
                self.say(b"250 ok\r\n")

    def finish(self):
        super().finish()
        self.request.close()  # of STARTTLS: the server closes the first one

    def say(self, text):
        self.wfile.write(text)
        self.wfile.flush()


@pytest.fixture
def certificate(tmp_path):
    """A certificate of localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "localhost.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


@pytest.fixture
def serve(certificate):
    """Start a mail server: ``serve(tls)``."""

    def start(tls, *, from_the_start=False):
        server = socketserver.TCPServer(("127.0.0.1", 0), Server)
        server.got, server.mail, server.secure, server.tls = [], [], from_the_start, None
        if tls:
            server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.tls.load_cert_chain(certificate)
        if from_the_start:
            server.socket = server.tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # of clients that refuse the certificate
        started.enter_context(running(server))
        return server

    with contextlib.ExitStack() as started:
        yield start


def configured(server=None, **email):
    given = {"to": ["a@example.org"], "sender": "b@example.org", "host": "localhost", **email}
    if server is not None:
        given["port"] = server.server_address[1]
    values = {
        "areas": {"path": "a.gpkg", "id": "id"},
        "counts": {"path": "c.csv", "value": "cases"},
        "covariates": {"x": {"path": "x.tif"}},
        "grid": {"like": "x.tif"},
        "notify": {"email": given},
    }
    return Config.model_validate(values)


def test_mail_is_encrypted_by_default(serve, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = serve(tls=True)
    assert send_notification(configured(server), "failure", "failed", "why") == []
    assert server.secure
    assert "Subject: failed" in server.mail[0]
    sent_in_clear = "".join(server.got[: server.got.index("STARTTLS\r\n")])
    assert "example.org" not in sent_in_clear


def test_tls_from_the_start(serve, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = serve(tls=True, from_the_start=True)
    assert send_notification(configured(server, encryption="tls"), "failure", "failed", "") == []
    assert server.mail
    assert configured(encryption="tls").notify.email.server_port == 465


def test_a_server_without_encryption_gets_no_mail(serve):
    server = serve(tls=False)
    (trouble,) = send_notification(configured(server), "failure", "failed", "secret reason")
    assert "offers no STARTTLS" in trouble
    assert "encryption: none" in trouble
    assert server.mail == []
    assert send_notification(configured(server, encryption="none"), "failure", "failed", "") == []
    assert len(server.mail) == 1


def test_an_unknown_certificate_gets_no_mail(serve):
    server = serve(tls=True)
    (trouble,) = send_notification(configured(server), "failure", "failed", "why")
    assert "certificate verify failed" in trouble
    assert server.mail == []


def test_the_former_key_still_works():
    assert configured(starttls=True).notify.email.encryption == "starttls"
    assert configured(starttls=False).notify.email.encryption == "none"


def test_no_password_without_encryption():
    with pytest.raises(ValueError, match="anybody on the way can read"):
        configured(encryption="none", user="me", password="s3cret")


def test_no_line_break_starts_another_header(serve):
    server = serve(tls=False)
    config = configured(server, encryption="none")
    subject = "failed\r\nBcc: all@example.org\nX: y"
    assert send_notification(config, "failure", subject, "why") == []
    head, _, _ = server.mail[0].partition("\r\n\r\n")
    assert [line for line in head.splitlines() if line.startswith(("Bcc", "X:"))] == []


def test_a_name_is_one_line(tmp_path):
    from pipeline.config.reader import load_config

    path = tmp_path / "disagg.yaml"
    path.write_text('name: "a\\nb"\n')
    with pytest.raises(InputError, match="line breaks or control characters"):
        load_config(path)
