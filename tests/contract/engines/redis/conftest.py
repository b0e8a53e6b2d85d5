from tests.system.engines.redis.conftest import engine, open_engine, server, start, url

__all__ = ["engine", "open_engine", "server", "start", "url"]
