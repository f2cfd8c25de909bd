"""Certificates and keys for a test federation: `python -m laconic.flower.local_keys FOLDER --nodes 3 [--host NAME …]`.

Writes a new certificate authority, a certificate for the SuperLink, and a key pair for every SuperNode. In production,
store the authority's key elsewhere, and let every node generate its own key pair and send only the public key.
"""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 30
LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class LocalKeys:
    """The paths of the files."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate: `--root-certificates` of nodes, and the SuperLink's `--ssl-ca-certfile`."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The SuperLink's `--ssl-certfile`."""
        return self.folder / "superlink.crt"

    @property
    def key(self) -> Path:
        """The SuperLink's `--ssl-keyfile`."""
        return self.folder / "superlink.key"

    def node(self, number: int) -> Path:
        """A SuperNode's `--auth-supernode-private-key`."""
        return self.folder / f"node-{number}"

    def public(self, number: int) -> Path:
        """A SuperNode's public key, for `flwr supernode register`."""
        return self.folder / f"node-{number}.pub"


def make_local_keys(folder: Path, nodes: int, hosts: Sequence[str] = ()) -> LocalKeys:
    """Write the keys and certificates of a SuperLink and its nodes. Existing files are overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = LocalKeys(folder)
    # The SuperLink's own worker connects to it by the loopback address.
    hosts = [*hosts, *(host for host in LOOPBACK if host not in hosts)]
    authority, name = ec.generate_private_key(ec.SECP384R1()), _name("Laconic local authority")
    server = ec.generate_private_key(ec.SECP384R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = {"content_commitment": False, "key_encipherment": False, "data_encipherment": False}
    usage |= {"key_agreement": False, "encipher_only": False, "decipher_only": False}
    root = (
        _certificate(name, name, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(authority, hashes.SHA384())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    leaf = (
        _certificate(_name(hosts[0]), name, server)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA384())
    )
    keys.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    keys.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    _write_secret(keys.key, _private(server, serialization.PrivateFormat.PKCS8))
    for number in range(nodes):
        pair = ec.generate_private_key(ec.SECP384R1())
        _write_secret(keys.node(number), _private(pair, serialization.PrivateFormat.OpenSSH))
        public = pair.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        keys.public(number).write_bytes(public + b"\n")
    return keys


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The machines' clocks may differ.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_secret(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m laconic.flower.local_keys", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder to write to")
    parser.add_argument("--nodes", type=int, default=3, help="number of SuperNodes (default: 3)")
    parser.add_argument(
        "--host",
        action="append",
        help="further name or address of the SuperLink; localhost and 127.0.0.1 are included; repeatable",
    )
    arguments = parser.parse_args()
    keys = LocalKeys(arguments.folder)
    written = [keys.authority, keys.certificate, keys.key, *(keys.node(number) for number in range(arguments.nodes))]
    if present := [path for path in written if path.exists()]:
        parser.error(f"{present[0]} exists already; choose another folder")
    make_local_keys(arguments.folder, arguments.nodes, arguments.host or ())
    print(f"written to {arguments.folder}: ca.crt, superlink.crt, superlink.key, node-0, node-0.pub, …")


if __name__ == "__main__":
    main()
