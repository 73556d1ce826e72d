"""Downloads over https alone: urllib and fsspec, redirects and certificates."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.graph.https import client, https_only, refuse_plain


class Answer(SimpleNamespace):
    """What a server says, as urllib's handlers take it."""

    def __init__(self, code: int, **headers: str) -> None:
        self.headers = {name.lower(): value for name, value in headers.items()}
        super().__init__(code=code, status=code, msg="", read=lambda *_: b"", close=lambda: None)

    def info(self) -> dict[str, str]:
        return self.headers


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Only https from here on; answers by address, and what was asked and how is noted."""
    import fsspec

    monkeypatch.setattr(urllib.request, "urlopen", urllib.request.urlopen)  # as before afterwards
    monkeypatch.setattr(fsspec.config, "conf", {})
    said: dict[str, Any] = {"asked": [], "contexts": []}

    def https_open(handler: Any, request: Any) -> Any:
        said["asked"].append(request.full_url)
        said["contexts"].append(handler._context)
        return said[request.full_url]

    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", https_open)
    https_only()
    return said


@pytest.mark.parametrize(
    "url",
    ["http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "data:,x", "/etc/passwd"],
)
def test_no_other_address_is_opened(network: dict[str, Any], url: str) -> None:
    with pytest.raises(HPGMNError, match="is not an https address"):
        urllib.request.urlopen(url if ":" in url else f"file://{url}")
    with pytest.raises(HPGMNError, match="is not an https address"):
        refuse_plain(url)
    assert network["asked"] == []


def test_a_request_is_looked_at_like_an_address(network: dict[str, Any]) -> None:
    with pytest.raises(HPGMNError, match="is not an https address"):
        urllib.request.urlopen(urllib.request.Request("http://example.org/a"), timeout=5)


def test_certificates_are_checked_even_where_the_caller_wants_none(network: dict[str, Any]) -> None:
    network["https://example.org/a"] = answer = Answer(200)
    unverified = ssl._create_unverified_context()  # as PyG calls it
    assert urllib.request.urlopen("https://example.org/a", context=unverified) is answer
    [context] = network["contexts"]
    assert context is not unverified
    assert context is None or context.verify_mode == ssl.CERT_REQUIRED  # None: urllib's, checked
    assert ssl._create_default_https_context().verify_mode == ssl.CERT_REQUIRED


def test_redirects_lead_to_https_alone(network: dict[str, Any]) -> None:
    network["https://example.org/a"] = Answer(302, Location="https://example.org/b")
    network["https://example.org/b"] = Answer(302, Location="http://example.org/c")
    with pytest.raises(HPGMNError, match=r"http://example\.org/c is not an https address"):
        urllib.request.urlopen("https://example.org/a")
    assert network["asked"] == ["https://example.org/a", "https://example.org/b"]


def test_fsspec_takes_the_same_rule(network: dict[str, Any]) -> None:
    import fsspec

    for protocol in ("http", "https"):
        system = fsspec.filesystem(protocol, skip_instance_cache=True)
        assert system.get_client is client
        with pytest.raises(HPGMNError, match=r"http://127\.0\.0\.1:9/a is not an https address"):
            system.cat("http://127.0.0.1:9/a")


@pytest.mark.parametrize(
    ("location", "is_refused"),
    [("http://example.org/b", True), ("/b", False), ("https://other.org/b", False), ("//x/b", 0)],
)
def test_aiohttp_follows_redirects_to_https_alone(location: str, is_refused: bool) -> None:
    async def ask() -> None:
        async with await client() as session:
            [trace] = session.trace_configs
            response = SimpleNamespace(headers={"Location": location})
            about = SimpleNamespace(url="https://example.org/a", response=response)
            [redirected] = trace.on_request_redirect
            await redirected(session, None, about)

    if is_refused:
        with pytest.raises(HPGMNError, match=r"http://example\.org/b is not an https address"):
            asyncio.run(ask())
    else:
        asyncio.run(ask())
