"""Downloads over https alone, for the process that fetches datasets.

PyTorch Geometric fetches by urllib, without a look at certificates, and by fsspec; both follow
redirects to anywhere. Some of what arrives is unpickled there, so it has to come from its source.
"""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.parse import urljoin, urlsplit

from hpgmn.base.errors import HPGMNError


def https_only() -> None:
    """Let this process fetch over https alone: certificates checked, redirects included."""
    opener = urllib.request.build_opener(_Redirects)

    def urlopen(url: Any, data: Any = None, timeout: float | None = None, **_: Any) -> Any:
        refuse_plain(url if isinstance(url, str) else url.full_url)
        within = {} if timeout is None else {"timeout": timeout}
        return opener.open(url, data, **within)

    urllib.request.urlopen = urlopen
    try:
        import fsspec
    except ImportError:  # then PyG does not use it either
        return
    for protocol in ("http", "https"):
        fsspec.config.conf.setdefault(protocol, {})["get_client"] = client


def refuse_plain(url: str) -> None:
    """Refuse any address but one of https.

    >>> refuse_plain("https://example.org/texas.zip")
    """
    if urlsplit(url).scheme.lower() != "https":
        raise HPGMNError(f"{url} is not an https address, and nothing else is fetched")


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        refuse_plain(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


async def client(**options: Any) -> Any:
    """A session of aiohttp, as fsspec wants it, that refuses any address but one of https."""
    import aiohttp

    async def begun(session: Any, context: Any, about: Any) -> None:
        refuse_plain(str(about.url))

    async def redirected(session: Any, context: Any, about: Any) -> None:
        headers = about.response.headers
        refuse_plain(urljoin(str(about.url), headers.get("Location") or headers.get("URI") or ""))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(begun)
    trace.on_request_redirect.append(redirected)
    return aiohttp.ClientSession(trace_configs=[trace], **options)
