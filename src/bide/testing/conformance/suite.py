"""The suite itself: all cases, and the fixtures that they stand on."""

from collections.abc import Callable, Iterator

import pytest

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.testing.conformance.batches import BatchCases
from bide.testing.conformance.changing import ChangeCases
from bide.testing.conformance.claiming import ClaimCases
from bide.testing.conformance.content import ContentCases
from bide.testing.conformance.desk import HOUR, START, Desk
from bide.testing.conformance.faces import AsyncThrough, Through
from bide.testing.conformance.keeping import KeepCases
from bide.testing.conformance.looking import LookCases
from bide.testing.conformance.moving import MoveCases
from bide.testing.conformance.putting import PutCases
from bide.testing.conformance.scripts import ScriptCases
from bide.testing.conformance.settling import SettleCases

__all__ = ["AsyncQueueConformance", "EngineConformance", "QueueConformance"]


class EngineConformance(
    ScriptCases,  # pytest goes from the last to the first: the random scripts come at the end
    BatchCases,
    ContentCases,
    LookCases,
    MoveCases,
    ChangeCases,
    KeepCases,
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
        """Provide a caller of a new store whose every command is held against the lifecycle."""
        engine = make_engine()
        yield Desk(engine)
        engine.close()

    @pytest.fixture
    def bare(self, make_engine: Callable[[], Engine]) -> Iterator[Desk]:
        """Provide a caller of a new store who is not watched, for thousands of messages."""
        engine = make_engine()
        yield Desk(engine, watched=False)
        engine.close()


class QueueConformance(EngineConformance):
    """Everything that an engine promises, asked of it through `Queue`, as users ask.

    Subclass it, provide `make_url`, and run pytest.

    Example:
        >>> class TestMyEngineThroughQueue(QueueConformance):
        ...     @pytest.fixture
        ...     def make_url(self, tmp_path):
        ...         numbers = itertools.count()
        ...         return lambda: f"mine://{tmp_path}/{next(numbers)}"
    """

    face: type[Through] = Through

    @pytest.fixture
    def make_url(self) -> Callable[[], str]:
        """Provide a function that names a new, empty store at each call."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture `make_url`: a function without arguments that "
            "returns the URL of a new, empty store"
        )

    @pytest.fixture
    def make_engine(self, make_url: Callable[[], str]) -> Callable[[], Engine]:
        """Provide a function that opens a queue on a new, empty store at each call."""
        return lambda: self.face(make_url())

    @pytest.fixture
    def reopen(self) -> Callable[[Engine], Engine]:
        """Provide a function that opens the store of a closed queue again."""

        def again(engine: Engine) -> Engine:
            assert isinstance(engine, Through)
            return self.face(engine.url)

        return again

    def test_a_command_that_cannot_be_undoes_its_batch(self, desk: Desk) -> None:
        """Callers of a face are strangers to each other: only the guilty one sees the error."""
        with pytest.raises(InvalidArgument):
            desk.batch(cmd.Put("q", [Item("a", b"1")]), cmd.Scan("q", "ready", cursor="nonsense"))
        assert desk.take() == ["a"]

    def test_users_say_most_of_it(self, desk: Desk) -> None:
        """The cases do go through the methods that users call."""
        held = desk.lease("a")
        desk.ack(held)
        desk.put("b", "c", delay=5, group="g")
        desk.reschedule("b", delay=7)
        desk.cancel("b")
        desk.cancel_where(group="g", before=START + HOUR)
        desk.forecast(1_000, 3)
        assert isinstance(desk.engine, Through)
        assert desk.engine.said >= 8


class AsyncQueueConformance(QueueConformance):
    """Everything that an engine promises, asked of it through `AsyncQueue`; see there."""

    face = AsyncThrough
