"""One broker for all tests of RabbitMQ that run in a process, and a stage on it for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.system.rabbitmq.broker import Broker
from tests.system.rabbitmq.environment import Stage


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that need the broker."""
    if "broker" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.process)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder with a certificate for localhost, its key, and its authority."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    trustme.CA().cert_pem.write_to_path(folder / "another.pem")
    return folder


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Path) -> Iterator[Broker]:
    """Provide the broker; it speaks TLS, too."""
    broker = Broker(tmp_path_factory.mktemp("rabbitmq"), authority)
    yield broker
    broker.close()


@pytest.fixture
def stage(broker: Broker, tmp_path: Path) -> Stage:
    """Provide an exchange of the test's own, a queue that is bound to it, and a store."""
    return Stage(broker, tmp_path / "bide.db")
