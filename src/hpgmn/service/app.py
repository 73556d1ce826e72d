"""The routes of the service; every error is JSON with ``error`` and ``remedy``."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import os
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpgmn.base.errors import HPGMNError, one_line
from hpgmn.base.version import __version__
from hpgmn.service.journal import JournalError
from hpgmn.service.journal import Row as TableRow
from hpgmn.service.page import page_router
from hpgmn.service.state import NotReadyError, ServedRun

logger = logging.getLogger(__name__)

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder in which worker processes share their metrics."""

MOST_RANKED = 10_000
"""The largest k of /top."""

_OPEN_PATHS = {"/health", "/"}  # the page holds no data and asks for the token


# Errors.


class _EveryOption:
    """All options: remedies name none, as they are of commands and of Python."""

    def __contains__(self, name: object) -> bool:
        return True


def refusal(
    status: int, error: str, remedy: str, headers: Mapping[str, str] | None = None
) -> HTTPException:
    """Return an error of the service."""
    return HTTPException(status, {"error": one_line(error), "remedy": one_line(remedy)}, headers)


def _respond(error: HTTPException) -> JSONResponse:
    return JSONResponse(error.detail, error.status_code, error.headers)


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(HPGMNError)
    async def refuse(request: Request, error: HPGMNError) -> Response:
        status = 503 if isinstance(error, NotReadyError | JournalError) else 422
        remedy = "See /openapi.json."
        if error.remedy is not None:
            remedy = error.remedy.render(without=_EveryOption())
        return _respond(refusal(status, error.message, remedy))

    @app.exception_handler(RequestValidationError)
    async def refuse_body(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        status = 400 if first["type"] == "json_invalid" else 422
        named = [part for part in first["loc"] if part not in ("str", "int")]  # not types tried
        path = ".".join(map(str, named))
        reason = first["msg"].removeprefix("Value error, ")
        remedy = "Compare with /openapi.json; send JSON as 'Content-Type: application/json'."
        return _respond(refusal(status, f"{path[:200]}: {reason}.", remedy))

    @app.exception_handler(AnyHTTPException)
    async def refuse_request(request: Request, error: AnyHTTPException) -> Response:
        if isinstance(error, HTTPException) and isinstance(error.detail, dict):
            return _respond(error)
        message = f"{request.method} {request.url.path}: {error.detail}."
        remedy = "See /openapi.json for the routes and their bodies."
        return _respond(refusal(error.status_code, message, remedy, error.headers))


# Bodies of requests.


def _check_value(value: Any) -> Any:
    """Refuse what no table holds."""
    if isinstance(value, str):
        is_valid = value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    elif isinstance(value, int):
        is_valid = abs(value) < 2**63
    else:
        is_valid = value is None or (isinstance(value, float) and math.isfinite(value))
    if not is_valid:
        raise ValueError("must be text in Unicode, a finite number, true, false or null")
    return value


_Value = Annotated[
    Any,
    AfterValidator(_check_value),
    Field(json_schema_extra={"type": ["string", "number", "boolean", "null"]}),
]
Row = dict[Annotated[str, AfterValidator(_check_value)], _Value]
Id = Annotated[StrictStr | StrictInt, AfterValidator(_check_value)]

_IDS = {"ids": ["a", "b"]}
_EDGES = {"edges": [{"source": "new", "target": "a", "amount": 10.5}]}
_NODES = {"nodes": [{"id": "new", "age": 31, "country": "DE"}], **_EDGES}


def _examples(*bodies: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": list(bodies)})


class PredictBody(BaseModel):
    """Known nodes by id, or new nodes with their edges, by the columns of the training tables."""

    model_config = _examples(_IDS, _NODES)
    ids: list[Id] | None = None
    nodes: list[Row] | None = None
    edges: list[Row] | None = None


class ExplainBody(BaseModel):
    """A known node."""

    model_config = _examples({"id": "a"})
    id: Id


class NodesBody(BaseModel):
    """New nodes and, optionally, their edges, by the columns of the training tables."""

    model_config = _examples(_NODES)
    nodes: list[Row] = Field(min_length=1)
    edges: list[Row] = []


class EdgesBody(BaseModel):
    """New edges between known nodes, by the columns of the training tables."""

    model_config = _examples(_EDGES)
    edges: list[Row] = Field(min_length=1)


class ErrorBody(BaseModel):
    """What is wrong, and what to do about it."""

    error: str
    remedy: str


# The app.


class _Guard:
    """Middleware: token, size and time limit before a route, metrics after it."""

    def __init__(
        self, app: ASGIApp, max_body: int, timeout: float, token: str | None, durations: Histogram
    ) -> None:
        self._app, self._max_body, self._timeout = app, max_body, timeout
        self._durations = durations
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, size = time.perf_counter(), 0, 0

        async def limited_receive() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                error = f"The body is larger than {self._max_body:,} bytes."
                remedy = "Send several requests, or serve with a larger --max-body."
                raise refusal(413, error, remedy, {"Connection": "close"})
            return message

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refused: HTTPException | None = None
        try:
            self._check_token(scope)
            async with asyncio.timeout(self._timeout):
                await self._app(scope, limited_receive, observed_send)
        except HTTPException as error:
            refused = error
        except TimeoutError:
            message = f"The request took longer than {self._timeout:g} seconds."
            remedy = "Send less at once, or later; an addition may have been made all the same."
            refused = refusal(503, message, remedy)
        except Exception:
            logger.error("%s %s: %s", scope["method"], scope["path"], traceback.format_exc())
            remedy = "Report it with the traceback in the log of the service."
            refused = refusal(500, "Internal error.", remedy)
        if refused is not None and not status:
            await _respond(refused)(scope, receive, observed_send)
        route = getattr(scope.get("route"), "path", "other")
        self._durations.labels(route, str(status)).observe(time.perf_counter() - start)

    def _check_token(self, scope: Scope) -> None:
        if self._token is None or scope["path"] in _OPEN_PATHS:
            return
        scheme, _, token = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token, self._token):
            raise refusal(
                *(401, "The bearer token is missing or wrong."),
                "Send the header 'Authorization: Bearer TOKEN'.",
                {"WWW-Authenticate": "Bearer"},
            )


def make_app(
    served: ServedRun,
    *,
    max_body: int = 2**20,
    timeout: float = 30.0,
    token: str | None = None,
    on_loaded: Callable[[BaseException | None], None] | None = None,
) -> FastAPI:
    """Build the service.

    Args:
        max_body: most bytes of a request.
        timeout: most seconds from the head of a request to its answer.
        token: the bearer token that every route but /health and the page requires; None for none.
        on_loaded: called with the failure, if any, after loading in the background; None: requests
            are accepted once the graph is loaded.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(served.load())
        if on_loaded is None:
            await loading
        else:
            loading.add_done_callback(lambda task: on_loaded(task.exception()))
        yield
        await asyncio.wait([loading])
        served.close()

    registry = CollectorRegistry()
    durations = Histogram(
        *("hpgmn_request_seconds", "Answered requests and their duration.", ["route", "status"]),
        registry=registry,
    )
    # Pages that show the schema load scripts from elsewhere: /openapi.json alone is served.
    app = FastAPI(
        title="hpgmn",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={"default": {"model": ErrorBody, "description": "An error and its remedy."}},
    )
    app.add_middleware(_Guard, max_body=max_body, timeout=timeout, token=token, durations=durations)
    _handle_errors(app)
    _add_routes(app, served)
    _add_metrics(app, served, registry)
    app.include_router(page_router(served))
    return app


def _add_routes(app: FastAPI, served: ServedRun) -> None:
    async def add(nodes: Sequence[TableRow], edges: Sequence[TableRow]) -> Response:
        if not served.journal.is_writable:
            raise refusal(403, "The service is read-only.", "Serve without --read-only.")
        await served.add(nodes, edges)
        added = {"nodes": len(nodes), "edges": len(edges)}
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
        live = served.require()
        if body.ids is not None and body.nodes is None and body.edges is None:
            predictions = await served.predict(body.ids)
        elif body.ids is None and body.nodes is not None:
            predictions = await served.compute(live.predict_new, body.nodes, body.edges or [])
        else:
            error = "Neither known nor new nodes are named, or both."
            remedy = 'Send {"ids": [...]} or {"nodes": [...], "edges": [...]}.'
            raise refusal(422, error, remedy)
        return JSONResponse({"predictions": predictions})

    @app.post("/explain", summary="Explain the prediction of a known node.")
    async def explain(body: ExplainBody) -> Response:
        return JSONResponse(await served.compute(served.require().explain, body.id))

    @app.post("/nodes", summary="Add nodes and their edges to the served graph.")
    async def add_nodes(body: NodesBody) -> Response:
        return await add(body.nodes, body.edges)

    @app.post("/edges", summary="Add edges to the served graph.")
    async def add_edges(body: EdgesBody) -> Response:
        return await add([], body.edges)

    @app.get("/top", summary="Rank unlabelled nodes by the probability of a class.")
    async def top(
        k: Annotated[int, Query(ge=1, le=MOST_RANKED)] = 50, of: str | None = None
    ) -> Response:
        return JSONResponse({"nodes": await served.compute(served.require().top, k, of)})


def _add_metrics(app: FastAPI, served: ServedRun, registry: CollectorRegistry) -> None:
    names = ("nodes", "edges", "journal_entries")
    gauges = {
        name: Gauge(
            f"hpgmn_{name}", "Of the served graph.", registry=registry, multiprocess_mode="max"
        )
        for name in names
    }

    @app.get("/metrics", summary="Metrics in the text format of Prometheus.")
    async def get_metrics() -> Response:
        for name, value in served.sizes.items():
            gauges[name].set(value)
        gauges["journal_entries"].set(served.journal.num_entries)
        shown = registry
        if METRICS_VARIABLE in os.environ:  # of all workers
            shown = CollectorRegistry()
            MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
        return PlainTextResponse(generate_latest(shown), media_type="text/plain; version=0.0.4")
