from tests.unit.lane.conftest import clock, engine, lane

__all__ = ["clock", "engine", "lane"]
