from tests.system.engines.postgres.conftest import engine, user

__all__ = ["engine", "user"]
