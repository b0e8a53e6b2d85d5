# ruff: noqa: E402  (pytest must know the cases before they are imported)
"""The conformance suite: what every engine promises, as tests for any engine.

Subclass `EngineConformance`, provide the fixture `make_engine`, and let pytest run it. See there.
"""

from collections.abc import Callable, Iterator
from pkgutil import iter_modules

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "the conformance suite needs pytest; install it with: pip install 'bide[testing]'"
    ) from error

# So that a failing assertion shows what it compared, as in the tests of a project.
pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in iter_modules(__path__)))

from bide.engines.port import Engine
from bide.testing.conformance.batches import BatchCases
from bide.testing.conformance.changing import ChangeCases
from bide.testing.conformance.claiming import ClaimCases
from bide.testing.conformance.closing import ClosingCases
from bide.testing.conformance.debouncing import DebounceCases
from bide.testing.conformance.driver import Driver
from bide.testing.conformance.ending import EndCases
from bide.testing.conformance.explaining import ExplainCases, LimitReportCases
from bide.testing.conformance.forwarding import ForwardCases
from bide.testing.conformance.limiting import LimitCases
from bide.testing.conformance.listing import EndListCases
from bide.testing.conformance.putting import PutCases
from bide.testing.conformance.queues import QueueCases
from bide.testing.conformance.reading import ReadCases
from bide.testing.conformance.repeating import RepetitionCases
from bide.testing.conformance.rules import RuleCases
from bide.testing.conformance.runs import RunCases
from bide.testing.conformance.scanning import ScanCases
from bide.testing.conformance.scripts import ScriptCases
from bide.testing.conformance.sharing import SharingCases
from bide.testing.conformance.stopping import StopCases

__all__ = ["EngineConformance"]


class EngineConformance(
    ScriptCases,  # pytest goes from the last to the first: the random scripts come at the end
    BatchCases,
    RepetitionCases,
    ScanCases,
    ReadCases,
    ExplainCases,
    EndListCases,
    EndCases,
    SharingCases,
    LimitReportCases,
    LimitCases,
    DebounceCases,
    ForwardCases,
    StopCases,
    RuleCases,
    RunCases,
    ClosingCases,
    ChangeCases,
    QueueCases,
    ClaimCases,
    PutCases,
):
    """Everything that an engine promises.

    Subclass it, provide `make_engine` (and `reopen`), and run pytest. There are 100 random scripts,
    the same ones every time; with `BIDE_EXAMPLES=5000` in the environment 5,000 new ones.

    Example:
        >>> class TestMyEngine(EngineConformance):
        ...     @pytest.fixture
        ...     def make_engine(self, tmp_path):
        ...         numbers = itertools.count()
        ...         return lambda: MyEngine(tmp_path / str(next(numbers)))
        ...
        ...     @pytest.fixture
        ...     def reopen(self):
        ...         return lambda engine: MyEngine(engine.path)
    """

    @pytest.fixture
    def make_engine(self) -> Callable[[], Engine]:
        """Provide a function that opens a new, empty store at each call."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture `make_engine`: a function without arguments "
            "that opens a new, empty store"
        )

    @pytest.fixture
    def reopen(self) -> Callable[[Engine], Engine]:
        """Provide a function that opens the store of a closed engine again."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture `reopen`: a function that takes an engine, "
            "which is closed, and opens its store again"
        )

    @pytest.fixture
    def driver(self, make_engine: Callable[[], Engine]) -> Iterator[Driver]:
        """Provide a driver of a new store; every command is checked against the lifecycle."""
        engine = make_engine()
        yield Driver(engine)
        engine.close()

    @pytest.fixture
    def bare(self, make_engine: Callable[[], Engine]) -> Iterator[Driver]:
        """Provide a driver without these checks, for cases with thousands of messages."""
        engine = make_engine()
        yield Driver(engine, watched=False)
        engine.close()
