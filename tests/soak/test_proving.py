import pytest

from tests.soak.proving import STORES, prove


@pytest.mark.process
@pytest.mark.full
@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_proved_while_its_server_is_killed(kind: str) -> None:
    assert prove(kind, kills=5, kill_every="200ms", every="2s")
