from tests.unit.testing.conftest import app, store

__all__ = ["app", "store"]
