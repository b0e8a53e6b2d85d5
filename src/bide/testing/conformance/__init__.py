"""The conformance suite: what every engine promises, as tests for any engine.

Subclass `EngineConformance`, provide the fixture `make_engine`, and let pytest run it. See there.
"""

from pkgutil import iter_modules

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    raise ImportError(
        f"the conformance suite needs {error.name}; install it with: pip install 'bide[testing]'"
    ) from error

# So that a failing assertion shows what it compared, as in the tests of a project.
pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in iter_modules(__path__)))

from bide.testing.conformance.suite import EngineConformance  # noqa: E402

__all__ = ["EngineConformance"]
