from tests.contract.queue.conftest import loop

__all__ = ["loop"]
