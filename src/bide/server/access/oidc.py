"""Validate JWTs of an OpenID Connect issuer, which callers send instead of a token of the store."""

import asyncio
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bide.engines.registry import is_this_machine
from bide.logs import logger
from bide.model.errors import InvalidArgument
from bide.model.identity import SERVER_NAMESPACE, check_namespace
from bide.model.limits import MAX_DOCUMENT, MAX_KEYS, MAX_SUBJECT
from bide.server.access.rights import (
    ALL_QUEUES,
    RIGHTS,
    Caller,
    Right,
    check_patterns,
    check_rights,
)
from bide.server.problem import Problem

ALGORITHMS = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "EdDSA": "OKP",
}
"""The algorithms that a JWT may be signed with, all asymmetric, with their kinds of keys."""

WHOLE_STORE = "*"

REFRESH = 600.0
"""Seconds after which the keys of the issuer are fetched again."""

COOLDOWN = 30.0
"""The minimum number of seconds between two fetches, even if JWTs name unknown keys."""

MAX_STALE = 86_400.0
"""Seconds for which known keys are used while the issuer cannot be reached."""

TIMEOUT = 5.0
"""Seconds that a fetch may take."""


_log = logger("bide.server")


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The issuer whose JWTs are accepted, and the meaning of their claims."""

    issuer: str
    """Its URL, exactly as in the claim `iss`."""
    audience: str
    """What the claim `aud` must contain."""
    jwks: str | None = None
    """The URL of its keys; by default the one in its discovery document."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    leeway: float = 30.0
    """Seconds by which the issuer's clock may differ."""
    namespace: str | None = None
    """The namespace of all callers, "*" for the whole store, instead of a claim."""
    namespace_claim: str = "bide_namespace"
    rights_claim: str = "bide_rights"
    """The claim with rights: a list, or text separated by spaces. "a.b" is b within a."""
    rights: dict[str, list[Right]] = {}
    """The rights for each value of that claim; by default the values are rights."""
    queues_claim: str = "bide_queues"
    """The claim with patterns of queues; all queues if it is missing."""

    def __post_init__(self) -> None:
        if not self.algorithms or not ALGORITHMS.keys() >= set(self.algorithms):
            raise InvalidArgument(
                f"oidc.algorithms={self.algorithms!r} must be among {', '.join(ALGORITHMS)}"
            )
        for name, url in (("issuer", self.issuer), ("jwks", self.jwks)):
            if url is not None and not _is_safe(url):
                raise InvalidArgument(f"oidc.{name}={url!r} must begin with https://")
        if not 0 <= self.leeway <= 300:
            raise InvalidArgument(f"oidc.leeway={self.leeway!r} must be between 0 and 300 seconds")
        if self.namespace not in (None, WHOLE_STORE):
            check_namespace(self.namespace or "")
        for allowed in self.rights.values():
            check_rights(allowed)


class Rejected(Exception):
    """The JWT is not valid; the text gives the reason."""


class Expired(Rejected):
    """The issuer has signed the JWT, but it has expired."""


class Oidc:
    """Validates JWTs.

    Args:
        settings: the issuer and the meaning of claims.

    Raises:
        InvalidArgument: PyJWT is not installed.
    """

    def __init__(self, settings: OidcSettings) -> None:
        try:
            import jwt
        except ImportError:
            raise InvalidArgument("oidc needs PyJWT: pip install 'bide[oidc]'") from None
        self._jwt = jwt
        self._settings = settings
        self._keys = _Keys(settings)

    async def caller(self, text: str) -> Caller:
        """Return the caller of a JWT.

        Raises:
            Rejected: the JWT is not valid.
            Problem: the issuer's keys are unknown, and it cannot be reached.
        """
        jwt, settings = self._jwt, self._settings
        try:
            header = jwt.get_unverified_header(text)
            algorithm = header.get("alg")
            if algorithm not in settings.algorithms:
                raise Rejected(f"its algorithm {algorithm!r} is not accepted")
            jwk = await self._keys.find(header.get("kid"), ALGORITHMS[algorithm])
            key = jwt.PyJWK(jwk, algorithm)
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError as error:
            raise Expired(str(error)) from None
        except jwt.PyJWTError as error:
            raise Rejected(str(error)) from None
        return self._caller_of_claims(claims)

    def _caller_of_claims(self, claims: dict[str, Any]) -> Caller:
        """Return the caller that the claims of a valid JWT describe.

        Raises:
            Rejected: a claim is missing or not usable.
        """
        settings = self._settings
        subject = claims["sub"]
        if not subject.isprintable() or not 0 < len(subject) <= MAX_SUBJECT:
            raise Rejected(f"its subject is not a text of 1 to {MAX_SUBJECT} characters")
        try:
            namespace = self._namespace(claims)
            queues = _texts(_claim(claims, settings.queues_claim))
            patterns = ALL_QUEUES if queues is None else check_patterns(queues, namespace)
        except InvalidArgument as error:
            raise Rejected(str(error)) from None
        values = _texts(_claim(claims, settings.rights_claim)) or []
        rights_by_value = settings.rights or {right: [right] for right in RIGHTS}
        rights = frozenset(right for value in values for right in rights_by_value.get(value, ()))
        return Caller(namespace, rights, patterns, token=subject, name=subject)

    def _namespace(self, claims: dict[str, Any]) -> str | None:
        """Return the namespace of a caller; `None`: the whole store."""
        settings = self._settings
        if settings.namespace is not None:
            return None if settings.namespace == WHOLE_STORE else settings.namespace
        value = _claim(claims, settings.namespace_claim)
        if not isinstance(value, str):
            raise Rejected(f"it has no namespace: its claim {settings.namespace_claim} is not text")
        if check_namespace(value) == SERVER_NAMESPACE:
            raise Rejected(f"namespace={value!r} is bide's own")
        return value


class _Keys:
    """The public keys of an issuer, fetched regularly, and when a JWT names an unknown one.

    Args:
        settings: the location of the keys.
    """

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._keys: list[dict[str, Any]] = []
        """The keys that were fetched last, as JSON Web Keys."""
        self._fetched_at = float("-inf")
        """When they were fetched, in seconds of the monotonic clock."""
        self._fetch_began_at = float("-inf")
        """When the last fetch began, in seconds of the monotonic clock."""
        self._fetching: asyncio.Task[None] | None = None
        """The last fetch, which may have ended."""

    async def find(self, kid: str | None, kind: str) -> dict[str, Any]:
        """Return the key of an id; without an id, the only key of that kind.

        Known keys are used while they are fetched again, unless they are too old. A request waits
        for a fetch only if it cannot be answered without.

        Args:
            kid: the id of the key; `None`: the JWT names none.
            kind: the kind of key that its algorithm needs, such as "RSA".

        Raises:
            Rejected: there is no such key.
            Problem: no keys are known, and the issuer cannot be reached.
        """
        key = self._known(kid, kind)
        age = time.monotonic() - self._fetched_at
        if key is None or age > REFRESH:
            is_fetching = self._fetching is not None and not self._fetching.done()
            if not is_fetching and time.monotonic() - self._fetch_began_at >= COOLDOWN:
                self._fetch_began_at = time.monotonic()
                self._fetching = asyncio.create_task(self._fetch())
            if self._fetching is not None and (key is None or age > MAX_STALE):
                await asyncio.shield(self._fetching)  # others may wait for it, too
                key = self._known(kid, kind)
        if time.monotonic() - self._fetched_at > MAX_STALE:
            raise Problem(
                "issuer-unavailable",
                f"the keys of {self._settings.issuer} cannot be fetched, so its JWTs cannot be "
                "checked; try again",
            )
        if key is None:
            raise Rejected(f"the issuer has no key {kid!r} for its algorithm")
        return key

    def _known(self, kid: str | None, kind: str) -> dict[str, Any] | None:
        """Return the key of an id among those that were fetched; `None` if there is none."""
        fitting = [key for key in self._keys if key["kty"] == kind]
        if kid is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.get("kid") == kid), None)

    async def _fetch(self) -> None:
        """Fetch the keys; if that fails, keep those that are known, and log the reason."""
        try:
            self._keys = await asyncio.to_thread(keys_of, self._settings)
            self._fetched_at = time.monotonic()
        except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
            _log.warning("the keys of %s cannot be fetched: %s", self._settings.issuer, reason)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Follow no redirect: it could lead anywhere."""


def keys_of(settings: OidcSettings) -> list[dict[str, Any]]:
    """Fetch the issuer's public keys for signatures.

    Raises:
        ValueError: what was fetched is not usable; `_get` has the other errors.
    """
    url = settings.jwks
    if url is None:
        document = _get(f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration")
        url = document.get("jwks_uri", "")
        if (
            document.get("issuer") != settings.issuer
            or not isinstance(url, str)
            or not _is_safe(url)
        ):
            raise ValueError("its discovery document names another issuer, or no https:// keys")
    keys = _get(url).get("keys")
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ValueError(f"{url} has no list of up to {MAX_KEYS} keys")
    kinds = ALGORITHMS.values()
    return [
        key
        for key in keys
        if isinstance(key, dict) and key.get("kty") in kinds and key.get("use", "sig") == "sig"
    ]


def _get(url: str) -> dict[str, Any]:
    """Fetch a JSON object.

    Raises:
        OSError: there is no answer in time.
        HTTPException: the answer is not HTTP, or is incomplete.
        ValueError: the answer is too large.
        msgspec.DecodeError: it is not a JSON object.
    """
    deadline = time.monotonic() + TIMEOUT
    data = b""
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(url, timeout=TIMEOUT) as reply:
        while part := reply.read1(65_536):  # piece by piece: the timeout is for one read only
            data += part
            if len(data) > MAX_DOCUMENT:
                raise ValueError(f"{url} is larger than {MAX_DOCUMENT:,} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} took more than {TIMEOUT:g} s")
    return msgspec.json.decode(data, type=dict[str, Any])


def _is_safe(url: str) -> bool:
    """Tell whether a URL is https, or its host is this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return True
    return parts.scheme == "http" and is_this_machine(parts.hostname)


def _claim(claims: dict[str, Any], name: str) -> Any:
    """Return a claim by its name, or by its path as in "realm_access.roles"; `None` if missing."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _texts(value: Any) -> list[str] | None:
    """Return the texts of a claim: a list, or text separated by spaces; `None` without the claim.

    A value of another type has none: what the issuer says wrongly gives no rights.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [element for element in value if isinstance(element, str)]
    return []
