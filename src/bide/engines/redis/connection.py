"""A connection to a server that has the scripts and was found fit for bide."""

from typing import Any

from redis import exceptions as redis_errors
from redis.utils import get_lib_version

from bide.engines.redis.calls import LIBRARY
from bide.engines.redis.dangers import (
    ENDS_CONNECTIONS,
    LARGEST_ANSWER,
    SETTINGS,
    UNLIMITED,
    answer_limit,
    cut_off,
    is_too_old,
    of_server,
    warn,
)
from bide.engines.redis.faults import (
    Refusal,
    is_of_network,
    no_connection,
    origin,
    translate,
    unfit,
)
from bide.engines.redis.layout import LAYOUT, LAYOUTS, VERSION, Arg
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import RedisSettings, shown_address
from bide.engines.redis.wire import ConnectionLost, Wire, pack
from bide.model.errors import SchemaTooNew, StoreUnavailable

# Redis-py asks for its version when it connects. On Python 3.13 the first time imports parts of
# importlib, and an interrupt there would leave the lock of all imports with the main thread.
get_lib_version()  # type: ignore[no-untyped-call]

_NO_LABEL = b""
"""Of commands of the server's own: only what functions answer has a label."""

_TAKES_NO_CHANGES = ("OOM", "READONLY", "NOREPLICAS", "MISCONF", "MASTERDOWN")
"""First words of refusals: a server that takes no library for one may have it already."""


def check_layout(version: bytes | None, shown: str) -> None:
    """Check that this engine can read a store by the version of its layout, if it has one.

    Args:
        version: as the store has it; `None`: the store is new.
        shown: the URL without its password.

    Raises:
        SchemaTooNew: another version of bide wrote it.
    """
    if version is None or version in [b"%d" % layout for layout in LAYOUTS]:
        return
    known = " and ".join(map(str, LAYOUTS))
    raise SchemaTooNew(
        f"{shown}: another version of bide stores its messages there (layout "
        f"{version.decode(errors='replace')}, this one reads {known}): upgrade bide here if that "
        "is a newer one; else export each queue with it (bide export), delete the keys that begin "
        "with bide:, and import the files with this one (bide import)"
    )


class RedisConnection(Wire):
    """A connection to a server that has the scripts and was found fit for bide.

    Args:
        settings: how to connect.
        address: where to.
        lost: the connection that it replaces. The same run of the server is asked to end that one:
            else commands that the network still holds back would be executed after they were sent
            again here.

    Raises:
        StoreError: the server cannot be reached, or is not what bide needs.
    """

    def __init__(
        self, settings: RedisSettings, address: Address, lost: "RedisConnection | None" = None
    ) -> None:
        super().__init__(settings.kind(**settings.arguments_at(address)))
        self._settings = settings
        self.address = address
        self.refusal: Refusal | None = None
        """Why the server did not take the library, which it may have all the same."""
        self._run = ""
        """The id of the server's run since its start; empty if it, or `client_id`, is not
        known."""
        self.client_id: Any = None
        """The number that the server gave to this connection."""
        self._shown = settings.shown_at(address)
        try:
            self.connect()
            self._examine()
            if lost is not None and lost._run and lost._run == self._run:
                # A refusal is ignored: this user may not be allowed to.
                self.ask("CLIENT", "KILL", "ID", lost.client_id)
        except BaseException as error:
            self.close()
            cause = (isinstance(error, ConnectionLost) and error.__cause__) or error
            if not is_of_network(cause):  # a signal handler has raised it
                raise origin(cause) from None
            if not isinstance(cause, (redis_errors.RedisError, Refusal)):
                cause = origin(cause)  # redis-py fails to report a Unix socket that is silent
            if not isinstance(cause, (redis_errors.RedisError, Refusal, OSError)):
                raise
            raise no_connection(cause, self._shown, shown_address(address)) from cause

    def demand(self, *command: Arg) -> Any:
        """Send one command and return what comes back.

        Raises:
            StoreError: the connection broke, or the server refuses.
        """
        try:
            answer = self.ask(*command)
        except ConnectionLost as lost:
            raise StoreUnavailable(f"{self._shown}: {lost}") from lost.__cause__
        if isinstance(answer, Refusal):
            raise translate(answer, self._shown)
        return answer

    def _examine(self) -> None:
        """Check that the server can be what bide needs, and prepare it.

        Raises:
            Refusal: the server refuses one of the commands, or lacks a right.
            StoreError: it is not what bide needs.
        """
        is_cluster = self._settings.cluster is not None
        packed = pack(("INFO", "default")) + pack(("CLIENT", "ID")) + pack(("GET", VERSION))
        info, client_id, version = self.exchange(packed, [_NO_LABEL] * 3)
        if isinstance(info, Refusal):
            raise info
        facts = dict(
            line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line
        )
        self._check_kind(facts)
        if not is_cluster:  # there, another node may have the version: `CallSender.open` asks
            if isinstance(version, Refusal):
                raise version
            check_layout(version, self._shown)
            if version is None:
                self.ask("SET", VERSION, LAYOUT, "NX")
        self._load()
        self._run = facts.get("run_id", "") if isinstance(client_id, int) else ""
        self.client_id = client_id
        self._check_settings(facts)

    def _load(self) -> None:
        """Load the library, unless it is there, and check that this user may run all of it."""
        check_rights: tuple[Arg, ...] = (
            "FCALL",
            LIBRARY.functions["rights"],
            0,
            *LIBRARY.commands,
        )
        packed = pack(("FUNCTION", "LOAD", LIBRARY.text)) + pack(check_rights)
        loaded, missing = self.exchange(packed, [_NO_LABEL] * 2)
        if isinstance(loaded, Refusal) and "already exists" not in str(loaded):
            if loaded.word not in _TAKES_NO_CHANGES:
                raise loaded
            self.refusal = loaded
        if isinstance(missing, list) and missing:
            names = " ".join(f"+{name.decode().lower()}" for name in missing)
            raise Refusal(f"NOPERM this user lacks {names}")

    def _check_kind(self, facts: dict[str, str]) -> None:
        """Check by what INFO says that the server is of the kind that the URL names.

        Raises:
            StoreUnavailable: the server is of another kind than the URL says.
            ConnectionError: it is no master any more; the sentinels soon name another one.
        """
        version, role = facts.get("redis_version", "0"), facts.get("role", "master")
        if self._settings.sentinels is not None and role != "master":
            raise redis_errors.ConnectionError(
                f"a sentinel names it as the master, but it is a {role}"
            )
        is_sentinel = facts.get("redis_mode") == "sentinel"
        is_cluster = self._settings.cluster is not None
        is_node_of_cluster = not is_cluster and facts.get("cluster_enabled") == "1"
        wrong_kinds = [
            (
                is_sentinel,
                "a sentinel: write redis+sentinel://host:26379/mymaster (or rediss+sentinel://)",
            ),
            (is_too_old(version), f"Redis {version}; bide needs 7.0 or newer, or Valkey"),
            (
                is_node_of_cluster,
                "a node of a cluster: write redis+cluster://host:port,host:port "
                "(or rediss+cluster://)",
            ),
        ]
        for is_wrong, kind in wrong_kinds:
            if is_wrong:
                raise unfit(f"{self._shown}: this is {kind}")

    def _check_settings(self, facts: dict[str, str]) -> None:
        """Check that the server sends all answers; log what else is bad for messages.

        Raises:
            StoreUnavailable: it would end the connection instead of answering a claim.
        """
        answer = self.ask("CONFIG", "GET", *SETTINGS)
        words = [] if isinstance(answer, Refusal) else [word.decode() for word in answer]
        config = dict(zip(words[::2], words[1::2], strict=True))
        most = answer_limit(config)
        if 0 < most < LARGEST_ANSWER:
            raise unfit(
                f"{self._shown}: client-output-buffer-limit normal is {most} bytes, and bide needs "
                f"{LARGEST_ANSWER} or no limit: {ENDS_CONNECTIONS}; {UNLIMITED}"
            )
        dangers = [finding for finding in of_server(facts, config) if finding.level == "danger"]
        warn(self._shown, dangers)
        if self._settings.sentinels is not None and self._settings.wait_replicas:
            warn(self._shown, cut_off(config))
