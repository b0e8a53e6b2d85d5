"""The suite: all cases, and their fixtures."""

from collections.abc import Callable, Iterator

import pytest

from bide.engines.port import Engine
from bide.testing.conformance.batches import BatchCases
from bide.testing.conformance.budgets import BudgetCases
from bide.testing.conformance.bursts import BurstCases
from bide.testing.conformance.changing import ChangeCases
from bide.testing.conformance.claiming import ClaimCases
from bide.testing.conformance.content import ContentCases
from bide.testing.conformance.debouncing import DebounceCases
from bide.testing.conformance.desk import Desk
from bide.testing.conformance.editing import EditCases
from bide.testing.conformance.ending import EndCases
from bide.testing.conformance.explaining import ExplainCases
from bide.testing.conformance.forwarding import ForwardCases
from bide.testing.conformance.limit_reports import LimitReportCases
from bide.testing.conformance.limiting import LimitCases
from bide.testing.conformance.moving import MoveCases
from bide.testing.conformance.putting import PutCases
from bide.testing.conformance.queues import QueueCases
from bide.testing.conformance.reading import ReadCases
from bide.testing.conformance.scripts import ScriptCases
from bide.testing.conformance.settling import SettleCases
from bide.testing.conformance.states import StateCases
from bide.testing.conformance.turns import TurnCases

__all__ = ["EngineConformance"]


class EngineConformance(
    ScriptCases,  # pytest goes from the last to the first: the random scripts come at the end
    BatchCases,
    ContentCases,
    ReadCases,
    ExplainCases,
    BudgetCases,
    EndCases,
    BurstCases,
    TurnCases,
    LimitReportCases,
    LimitCases,
    MoveCases,
    DebounceCases,
    ForwardCases,
    EditCases,
    ChangeCases,
    StateCases,
    QueueCases,
    SettleCases,
    ClaimCases,
    PutCases,
):
    """Everything that an engine promises.

    Subclass it, provide `make_engine` (and `reopen`), and run pytest. The random scripts run 200
    examples each, the same ones every time; `BIDE_EXAMPLES=5000` in the environment makes them
    search that many new ones.

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
    def desk(self, make_engine: Callable[[], Engine]) -> Iterator[Desk]:
        """Provide a caller of a new store; every command is checked against the lifecycle."""
        engine = make_engine()
        yield Desk(engine)
        engine.close()

    @pytest.fixture
    def bare(self, make_engine: Callable[[], Engine]) -> Iterator[Desk]:
        """Provide a caller without these checks, for cases with thousands of messages."""
        engine = make_engine()
        yield Desk(engine, watched=False)
        engine.close()
