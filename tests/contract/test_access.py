"""A user that may do just what is needed, and TLS with certificates of our own."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from checkpoints import StoreSettings, acl, open_store
from checkpoints.connect import load_scripts
from checkpoints.errors import StoreUnavailable
from checkpoints.testing.contract import NewStore, StoreContract, Vandal, started
from checkpoints.testing.retention import RetentionContract
from checkpoints.testing.schedule import ScheduleContract, WakeContract
from checkpoints.testing.servers import Clients, free_port, start_redis

PACKAGE = Path(acl.__file__).parent
QUICK = StoreSettings(connect_s=2.0, answer_s=2.0, restart_s=0.5)


class TestUnderTheShippedAcl(StoreContract, ScheduleContract, WakeContract, RetentionContract):
    """All contracts by a user with the shipped rules, who may not even load a script."""

    @pytest.fixture
    async def clients(self, debian: Clients, redis_url: str) -> AsyncIterator[Clients]:
        store = await debian()
        rules = acl.rules(debian.namespace, loads_scripts=False)
        await store._line.call("ACL", "SETUSER", "worker", "reset", ">pass", *rules)
        await store._line.call("ACL", "SETUSER", "loader", "reset", ">load", *acl.loader_rules())
        await load_scripts(redis_url.replace("unix://", "unix://loader:load@"))
        own = redis_url.replace("unix://", "unix://worker:pass@")
        clients = Clients(own, StoreSettings(fold_after_s=0.0))
        clients.namespace = debian.namespace
        yield clients
        await clients.aclose()

    @pytest.fixture
    def new_store(self, clients: Clients) -> NewStore:
        return clients

    @pytest.fixture
    async def store(self, new_store: NewStore) -> Any:
        return await new_store()

    @pytest.fixture
    async def vandal(self, clients: Clients, debian: Clients) -> Vandal:
        await clients()
        return await debian.vandal(64)


async def test_a_user_of_one_namespace_reaches_no_other(debian: Clients, redis_url: str) -> None:
    await started(await debian())
    other = await debian()
    rules = acl.rules("elsewhere")
    await other._line.call("ACL", "SETUSER", "stranger", "reset", ">pass", *rules)
    url = redis_url.replace("unix://", "unix://stranger:pass@")

    with pytest.raises(StoreUnavailable, match="lacks a permission"):
        await open_store(url, namespace=debian.namespace)
    for forbidden in (("KEYS", "*"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("SCRIPT", "FLUSH")):
        store = await open_store(url, namespace="elsewhere")
        with pytest.raises(Exception, match="NOPERM"):
            await store._line.call(*forbidden)
        await store.aclose()


def test_the_rules_hold_every_command_of_the_scripts() -> None:
    allowed = {rule[1:] for rule in acl.rules("n")}
    for path in (PACKAGE / "lua").glob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        used = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", code)}
        assert used <= allowed, path


def test_the_line_of_the_page_is_the_one_that_is_shipped() -> None:
    page = (PACKAGE.parent / "docs" / "store.md").read_text()

    (shown,) = re.findall(r"```text\n(user agents .*?)```", page, re.DOTALL)

    assert shown.split() == ["user", "agents", ">PASSWORD", *acl.rules("fsm")]


# -- TLS -------------------------------------------------------------------------------------------


class Authority:
    """A private CA and what it signs, as files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = self._write(f"{name}.pem", self._signed(self._issuer, self._key, None))

    def issue(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._write(f"{self.name}-{name}.pem", self._signed(subject, key, name))
        secret = self.folder / f"{self.name}-{name}.key"
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, secret

    def _signed(self, subject: x509.Name, key: Any, host: str | None) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            names: list[x509.GeneralName] = [x509.DNSName(host)]
            if host == "localhost":
                names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def tls_port(short_folder: Path, authority: Authority) -> Iterator[int]:
    """A server that wants a certificate of its clients."""
    port = free_port()
    certificate, key = authority.issue("localhost")
    tls = ("--tls-port", str(port), "--bind", "127.0.0.1", "--tls-ca-cert-file", str(authority.ca))
    own = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    server = start_redis(short_folder / "tls.sock", short_folder, *tls, *own)
    yield port
    server.kill()
    server.wait()


def with_client(authority: Authority) -> str:
    certificate, key = authority.issue("client")
    return f"ssl_certfile={certificate}&ssl_keyfile={key}"


async def test_a_private_authority_and_a_client_certificate(
    authority: Authority, tls_port: int
) -> None:
    for host in ("localhost", "127.0.0.1"):
        url = f"rediss://{host}:{tls_port}?ssl_ca_certs={authority.ca}&{with_client(authority)}"
        store = await open_store(url, settings=QUICK)
        assert (await store.facts())["version"]
        await store.aclose()


async def test_what_tls_refuses_is_told_as_such(
    authority: Authority, tls_port: int, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "theirs")
    ca, client = f"ssl_ca_certs={authority.ca}", with_client(authority)
    for query, words in (
        (client, "TLS failed: CERTIFICATE_VERIFY_FAILED"),  # the system does not know our CA
        (f"ssl_ca_certs={stranger.ca}&{client}", "TLS failed: CERTIFICATE_VERIFY_FAILED"),
        (ca, "certificate|closed|reset"),  # no certificate of the client
        (f"{ca}&{with_client(stranger)}", "certificate|unknown ca|closed|reset|UNKNOWN_CA"),
        (f"ssl_ca_certs={tmp_path}/none.pem&{client}", "cannot be used: No such file"),
    ):
        with pytest.raises(StoreUnavailable, match=words):
            await open_store(f"rediss://localhost:{tls_port}?{query}", settings=QUICK)
    with pytest.raises(StoreUnavailable):
        await open_store(f"redis://localhost:{tls_port}", settings=QUICK)
    unchecked = f"rediss://localhost:{tls_port}?ssl_cert_reqs=none&{client}"
    await (await open_store(unchecked, settings=QUICK)).aclose()
