"""One chat-completions endpoint: its address, its credentials, and a connection to it."""

import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx

from loopwarden.provider import AgentFailed, ProviderStartError
from loopwarden.providers.error_words import evidence_line
from loopwarden.providers.redaction import Secrets

PATH: Final = "/chat/completions"
MIN_KEY_CHARS: Final = 4
MIN_HEADER_WORD_CHARS: Final = 8
"""Shorter texts are no secrets, and taking them out would leave no sentence whole."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_OWN_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding"}
)


@dataclass(slots=True, eq=False)
class Endpoint:
    """Made by `open_endpoint`. Nothing secret is in its repr."""

    name: str
    """As shown to people: scheme, host, port and path."""
    _url: httpx.URL = field(repr=False)
    _headers: Mapping[str, str] = field(repr=False)
    _secrets: Secrets = field(repr=False)
    _proxy: httpx.Proxy | None = field(repr=False)
    _connect_timeout_seconds: float = field(repr=False)
    has_credentials: bool = False
    _tls: ssl.SSLContext | None = field(default=None, repr=False)

    @contextlib.asynccontextmanager
    async def ask(self, body: bytes) -> AsyncIterator[httpx.Response]:
        """Send `body`, and give the response before its own body is read. Leaving it closes the connection.

        A client per ask: a provider belongs to no event loop and is never closed, so a shared one would be left open.
        It costs setting up a connection for each. Nothing of the environment is taken but SSL_CERT_FILE and
        SSL_CERT_DIR: no proxy and no .netrc. No redirect is followed: it would carry the prompt to somebody else.
        """
        client = httpx.AsyncClient(
            verify=self._tls_context(),
            timeout=httpx.Timeout(None, connect=self._connect_timeout_seconds),  # The host measures silence.
            follow_redirects=False,
            trust_env=False,
            proxy=self._proxy,
        )
        async with client, client.stream("POST", self._url, content=body, headers=self._headers) as response:
            yield response

    def without_secrets(self, text: str) -> str:
        """`text` with the credentials taken out."""
        return self._secrets.without(text)

    def evidence(self, said: str) -> str:
        """What an endpoint said, as one bounded line without the credentials."""
        # Before it is cut, since half a key is too much of it; and after, since cleaning up can put a key together.
        return self.without_secrets(evidence_line(self.without_secrets(said)))

    def scrubbed(self, failed: AgentFailed) -> AgentFailed:
        """A failure with the credentials taken out of all its texts."""
        self._secrets.scrub(failed)
        return failed

    def place_of(self, location: str) -> str:
        """Where a redirect leads, as it can be shown: without what stands behind the path."""
        try:
            return self.without_secrets(shown_url(self._url.join(location)))
        except (httpx.InvalidURL, ValueError):
            return "another place"

    def _tls_context(self) -> ssl.SSLContext:
        # One for all clients: to read the certificates takes longer than all the rest of an ask.
        if self._tls is None:
            self._tls = _tls_context(self._url.scheme)
        return self._tls


def _tls_context(scheme: str) -> ssl.SSLContext:
    if scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Never used; if it were, it would trust nobody.
    try:
        return httpx.create_ssl_context()
    except OSError:
        raise ProviderStartError(
            "the certificates could not be read; check the variables SSL_CERT_FILE and SSL_CERT_DIR"
        ) from None


def open_endpoint(
    *,
    base_url: str,
    api_key: str | None,
    headers: Mapping[str, str],
    proxy_url: str | None,
    connect_timeout_seconds: float,
) -> Endpoint:
    """Check what a deployment says, and connect to nothing. Raises ValueError, never with a secret in it."""
    url = _checked_url(base_url)
    if not 0 < connect_timeout_seconds < float("inf"):
        raise ValueError("connect_timeout_seconds must be above zero")
    sent = {"accept": "text/event-stream, application/json", "user-agent": "loopwarden"}
    for name, value in headers.items():
        sent[_checked_name(name)] = _checked_value(value, f"the header {name}")
    words = [word for value in headers.values() for word in (value, *value.split())]
    secrets = [word for word in words if len(word) >= MIN_HEADER_WORD_CHARS]
    if api_key is not None:
        if "authorization" in sent:
            raise ValueError("api_key and the header authorization exclude each other; give one of them")
        sent["authorization"] = f"Bearer {_checked_value(api_key, 'api_key')}"
        secrets += [api_key] if len(api_key) >= MIN_KEY_CHARS else []
    sent |= {"content-type": "application/json", "accept-encoding": "identity"}
    if url.query:
        secrets.append(url.query.decode("ascii", "replace"))
    proxy = _checked_proxy(proxy_url)
    if proxy is not None and proxy.auth is not None:
        secrets.append(proxy.auth[1])
    return Endpoint(
        name=f"the endpoint {shown_url(url)}",
        _url=url.copy_with(raw_path=_path(url)),
        _headers=httpx.Headers(sent),
        _secrets=Secrets.of(secrets),
        _proxy=proxy,
        _connect_timeout_seconds=connect_timeout_seconds,
        has_credentials=api_key is not None or bool(headers),
    )


def shown_url(url: httpx.URL) -> str:
    """Scheme, host, port and path: what stands behind them may be secret."""
    return str(url.copy_with(username="", password="", query=None, fragment=None)).rstrip("/")


def _path(url: httpx.URL) -> bytes:
    path = url.raw_path.split(b"?")[0].rstrip(b"/")
    if not path.endswith(PATH.encode()):
        path += PATH.encode()
    return path + (b"?" + url.query if url.query else b"")


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        raise ValueError("base_url is not a URL; it looks like https://api.example.com/v1") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("base_url must begin with https:// or http:// and name a host")
    if url.userinfo:
        raise ValueError("base_url must not hold a user or password; give api_key or headers")
    if url.fragment:
        raise ValueError("base_url must not hold a fragment (#)")
    return url


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"the header {name} is set by the provider itself")
    return name.lower()


def _checked_value(value: str, what: str) -> str:
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise ValueError(f"{what} must be visible ASCII text without space around it; look for a line end in it")
    return value


def _checked_proxy(text: str | None) -> httpx.Proxy | None:
    if text is None:
        return None
    try:
        return httpx.Proxy(text)
    except (httpx.InvalidURL, ValueError):
        raise ValueError("proxy_url is not the URL of a proxy; it looks like http://proxy.example.com:3128") from None
