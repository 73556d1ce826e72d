"""The routes of the service; every error is JSON with ``error`` and ``remedy``."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import os
import time
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import multiprocess as shared_metrics
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpgmn.base.errors import HPGMNError, Remedy, one_line
from hpgmn.base.version import __version__
from hpgmn.service.examples import request_examples
from hpgmn.service.journal import JournalError
from hpgmn.service.page import page_router
from hpgmn.service.state import METRICS_VARIABLE, Limits, NotReadyError, ServedRun

logger = logging.getLogger(__name__)

_NO_OPTIONS = {"--drop-unknown-edges"}  # of tables, not of requests
_LARGEST_INTEGER = 2**63
_OPEN_PATHS = {"/health", "/"}  # the page holds no data and asks for the token


class RequestError(HPGMNError):
    """A request that is refused with a status of its own."""

    def __init__(
        self,
        status: int,
        message: str,
        remedy: Remedy | str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, remedy)
        self.status, self.headers = status, headers


def error_response(error: HPGMNError) -> JSONResponse:
    """Render an error; remedies name keywords, as in Python."""
    status, headers = 422, None
    if isinstance(error, RequestError):
        status, headers = error.status, error.headers
    elif isinstance(error, NotReadyError | JournalError):
        status = 503
    remedy = error.remedy or Remedy("See /openapi.json")
    text = one_line(remedy.render(without=_NO_OPTIONS))
    return JSONResponse({"error": error.message, "remedy": text}, status, headers)


# Bodies of requests.


def _check_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("must be valid Unicode text") from None
    return text


def _check_integer(value: int) -> int:
    if not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        raise ValueError("must be an integer of 64 bits")
    return value


def _check_row(row: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that no table holds."""
    for name, value in row.items():
        _check_text(name)
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, int):
            _check_integer(value)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"'{name}' must be finite; a missing value is null")
        elif value is not None:
            raise ValueError(f"'{name}' must be text, a number, true, false or null")
    return row


_VALUE = {"type": ["string", "number", "boolean", "null"]}
Row = Annotated[
    dict[str, Any],
    AfterValidator(_check_row),
    Field(json_schema_extra={"additionalProperties": _VALUE}),
]
Id = (
    Annotated[str, Strict(), AfterValidator(_check_text)]
    | Annotated[int, Strict(), AfterValidator(_check_integer)]
)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def check(self, limits: Limits) -> None:
        """Refuse a request with too many items."""
        items = sum(len(value) for _, value in self if isinstance(value, list))
        if items > limits.max_items:
            raise RequestError(
                *(413, f"The request has {items:,} items, more than {limits.max_items:,}."),
                Remedy("Send several requests") | Remedy("Serve with more", option="max_items"),
            )


class PredictBody(_Body):
    """Known nodes by id, or new nodes with their edges."""

    ids: list[Id] | None = None
    nodes: list[Row] | None = None
    edges: list[Row] | None = None


class ExplainBody(_Body):
    """A known node."""

    id: Id


class NodesBody(_Body):
    """New nodes and, optionally, their edges."""

    nodes: list[Row] = Field(min_length=1)
    edges: list[Row] = []


class EdgesBody(_Body):
    """New edges between known nodes."""

    edges: list[Row] = Field(min_length=1)


# The app.


class _Metrics:
    """What Prometheus reads: requests, latency, sizes; of all workers where there are several."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._is_shared = METRICS_VARIABLE in os.environ
        registry = None if self._is_shared else self._registry
        self._requests = Counter(
            *("hpgmn_requests", "Answered requests.", ["route", "status"]), registry=registry
        )
        self._seconds = Histogram(
            *("hpgmn_request_seconds", "Duration of requests.", ["route"]),
            registry=registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
        )
        self._sizes = {
            name: Gauge(f"hpgmn_{name}", about, registry=registry, multiprocess_mode="max")
            for name, about in (
                ("nodes", "Nodes of the served graph."),
                ("edges", "Edges of the served graph."),
                ("journal_entries", "Acknowledged additions in the journal."),
            )
        }

    def observe(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def set_sizes(self, **sizes: int) -> None:
        for name, value in sizes.items():
            self._sizes[name].set(value)

    def render(self) -> bytes:
        registry = self._registry
        if self._is_shared:
            registry = CollectorRegistry()
            shared_metrics.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class _Guard:
    """Middleware: token, media type, size and time limit before a route, metrics after it."""

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None, metrics: _Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal: Response | None = None
        try:
            async with asyncio.timeout(self._limits.timeout):
                body = await self._read_body(scope, receive)
                await self._app(scope, _replay(body, receive), observed_send)
        except RequestError as error:
            refusal = error_response(error)
        except TimeoutError:
            message = f"The request took longer than {self._limits.timeout:g} seconds."
            remedy = "Send less at once, or later; an addition may have been made all the same"
            refusal = error_response(RequestError(503, message, remedy))
        except _DisconnectedError:
            return
        except Exception:
            logger.error("%s %s: %s", scope["method"], scope["path"], traceback.format_exc())
            remedy = "Report it with the traceback in the log of the service"
            refusal = error_response(RequestError(500, "Internal error.", remedy))
        if refusal is not None and not status:
            await refusal(scope, receive, observed_send)
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.observe(route, status, time.perf_counter() - start)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request that is allowed; the size is limited while reading."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._authorization is not None and scope["path"] not in _OPEN_PATHS:
            received = headers.get(b"authorization", b"")
            if not hmac.compare_digest(received, self._authorization):
                raise RequestError(
                    *(401, "The bearer token is missing or wrong."),
                    "Send the header 'Authorization: Bearer TOKEN'",
                    {"WWW-Authenticate": "Bearer"},
                )
        body, limit = bytearray(), self._limits.max_body
        declared = headers.get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() and len(declared) < 20 else limit + 1
        is_complete = False
        while size <= limit and not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)
            size = max(size, len(body))
        if size > limit:
            raise RequestError(
                *(413, f"The body is larger than {limit:,} bytes."),
                Remedy("Send several requests") | Remedy("Serve with more", option="max_body"),
                {"Connection": "close"},  # the rest of the body is not read
            )
        media_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if body and media_type != b"application/json":
            # Also keeps web pages of other origins from posting forms.
            raise RequestError(
                *(415, "The body is not declared as JSON."),
                "Send the header 'Content-Type: application/json'",
            )
        return bytes(body)


class _DisconnectedError(Exception):
    """The client has gone."""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body at once, and later the end of the connection."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def make_app(served: ServedRun, limits: Limits | None = None, token: str | None = None) -> FastAPI:
    """Build the service; it loads in the background once it runs.

    Args:
        token: the bearer token that every route but /health requires; None for none.
    """
    limits = limits or Limits()
    metrics = _Metrics()

    def update_sizes() -> None:
        metrics.set_sizes(**served.sizes, journal_entries=served.journal.num_entries)

    async def load() -> None:
        await served.load()
        if served.live is not None:
            app.include_router(page_router(served.live, served.compute))
            served.on_ready()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(load())
        yield
        await loading
        served.close()

    served.on_change = update_sizes
    # Pages that show the schema load scripts from elsewhere: /openapi.json alone is served.
    app = FastAPI(
        title="hpgmn",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(_Guard, limits=limits, token=token, metrics=metrics)
    _handle_errors(app, served)
    _add_routes(app, served, limits)

    @app.get("/metrics", summary="Metrics in the text format of Prometheus.")
    async def get_metrics() -> Response:
        return PlainTextResponse(metrics.render(), media_type="text/plain; version=0.0.4")

    @app.get("/openapi.json", include_in_schema=False)
    async def get_schema() -> JSONResponse:
        served.require()
        return JSONResponse(openapi_schema(app, served))

    return app


def _handle_errors(app: FastAPI, served: ServedRun) -> None:
    @app.exception_handler(HPGMNError)
    async def refuse(request: Request, error: HPGMNError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def refuse_body(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            reason = f"The body is not valid JSON: {first['ctx']['error']}."
            return error_response(RequestError(400, reason, "Send a JSON object"))
        path = ".".join(str(part) for part in first["loc"] if part != "body")
        reason = first["msg"].removeprefix("Value error, ")
        message = f"{path[:200] or 'The body'}: {reason}."
        return error_response(HPGMNError(message, "Compare with the examples in /openapi.json"))

    @app.exception_handler(HTTPException)
    async def refuse_request(request: Request, error: HTTPException) -> Response:
        method, path = request.method, request.url.path
        if path == "/" and served.live is None:  # the page comes with the graph
            return error_response(NotReadyError("The service is loading.", "Reload the page"))
        message, remedy = {
            400: ("The body is not valid JSON.", "Send a JSON object in UTF-8, not deeply nested"),
            404: (f"There is no {path}.", "See /openapi.json for the routes"),
            405: (f"{path} does not take {method}.", "See /openapi.json for its method"),
        }.get(error.status_code, (HTTPStatus(error.status_code).phrase, "See /openapi.json"))
        return error_response(RequestError(error.status_code, message, remedy, error.headers))


def _add_routes(app: FastAPI, served: ServedRun, limits: Limits) -> None:
    async def add(body: NodesBody | EdgesBody) -> Response:
        served.require()
        if not served.journal.is_writable:
            raise RequestError(
                *(403, "The service is read-only."),
                Remedy("Serve a graph that grows", option="read_only", value=False),
            )
        body.check(limits)
        nodes = body.nodes if isinstance(body, NodesBody) else []
        await served.add(nodes, body.edges)
        added = {"nodes": len(nodes), "edges": len(body.edges)}
        return JSONResponse({"added": added, "graph": served.sizes})

    @app.get("/health", summary="Whether the process runs.")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready", summary="Whether model and journal are loaded; 503 before.")
    async def ready() -> Response:
        served.require()
        return JSONResponse({"status": "ready", "graph": served.sizes})

    @app.post("/predict", summary="Predict known nodes by id, or new nodes with their edges.")
    async def predict(body: PredictBody) -> Response:
        body.check(limits)
        live = served.require()
        is_known = body.ids is not None
        if is_known == (body.nodes is not None) or (is_known and body.edges is not None):
            raise HPGMNError("Neither known nor new nodes are named, or both.", _PREDICT_REMEDY)
        if body.ids is not None:
            predictions = await served.predict(body.ids)
        else:
            new = (body.nodes or [], body.edges or [])
            predictions = await served.compute(live.predict_new, *new)
        return JSONResponse({"predictions": predictions})

    @app.post("/explain", summary="Explain the prediction of a known node.")
    async def explain(body: ExplainBody) -> Response:
        return JSONResponse(await served.compute(served.require().explain, body.id))

    @app.post("/nodes", summary="Add nodes and their edges to the served graph.")
    async def add_nodes(body: NodesBody) -> Response:
        return await add(body)

    @app.post("/edges", summary="Add edges to the served graph.")
    async def add_edges(body: EdgesBody) -> Response:
        return await add(body)

    @app.get("/top", summary="Rank unlabelled nodes by the probability of a class.")
    async def top(k: int = 50, of: str | None = None) -> Response:
        if not 1 <= k <= limits.max_items:
            most = f"{limits.max_items:,}"
            raise HPGMNError(f"k must be 1 to {most} (got {k}).", Remedy("Set it", "k", value=50))
        nodes = await served.compute(served.require().top, k, of)
        return JSONResponse({"nodes": nodes})


_PREDICT_REMEDY = 'Send {"ids": [...]} or {"nodes": [...], "edges": [...]}'


def openapi_schema(app: FastAPI, served: ServedRun) -> dict[str, Any]:
    """Return the OpenAPI description, with examples that fit the served graph."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schema["components"]["schemas"]["Error"] = {
            "type": "object",
            "properties": {"error": {"type": "string"}, "remedy": {"type": "string"}},
        }
        reference = {"$ref": "#/components/schemas/Error"}
        for operation in _operations(schema):
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "An error and its remedy.",
                "content": {"application/json": {"schema": reference}},
            }
        for path, examples in request_examples(served.require().graph).items():
            content = schema["paths"][path]["post"]["requestBody"]["content"]
            content["application/json"]["examples"] = {
                name: {"value": value} for name, value in examples.items()
            }
        app.openapi_schema = schema
    return app.openapi_schema


def _operations(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in schema["paths"].values() for operation in path.values()]
