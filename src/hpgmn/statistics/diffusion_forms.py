"""The definition of diffusion: its forms, their memory, and how each is built."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, ClassVar

import scipy.sparse as sp
import torch
from typing_extensions import override

from hpgmn.base.errors import Remedy, format_bytes
from hpgmn.base.files import array_digest
from hpgmn.base.machine import free_bytes
from hpgmn.base.sparse import SparseMatrix, scale_attributes, transition
from hpgmn.graph import Array
from hpgmn.statistics import definitions
from hpgmn.statistics.cache import rounding_environment
from hpgmn.statistics.definitions import (
    Definition,
    Request,
    Selection,
    diffusion_is_sketched,
    does_not_fit,
    log_form,
    select,
)
from hpgmn.statistics.diffusion import (
    SKETCH_BLOCK,
    DenseDiffusion,
    ImplicitDiffusion,
    dense_arrays,
    node_keys,
    reached_nodes,
    sketch,
)
from hpgmn.statistics.operators import DenseRows, SparseRows, Statistic
from hpgmn.statistics.settings import FORMS

logger = logging.getLogger(__name__)

_COLUMNS = 256  # columns that the implicit form diffuses at once


class Diffusion(Definition):
    """r⁴: the row of the diffusion matrix S = Σ θ_k T^k.

    ``auto``: *dense* where an N×N matrix takes at most ``DENSE_LIMIT_BYTES`` and fits; *sketch*
    beyond that limit where N·E exceeds :data:`IMPLICIT_LIMIT`; else *implicit*.
    """

    _series: ClassVar[tuple[str, ...]] = (
        *("diffusion", "teleport", "heat_time", "diffusion_tolerance"),
        *("normalization", "diffusion_self_loop", "diffusion_self_entry"),
    )
    stored: ClassVar[dict[str, tuple[str, ...]]] = {
        "dense": (*_series, "diffusion_scaling"),
        "implicit": (*_series, "diffusion_scaling"),
        "topk": (*_series, "diffusion_topk", "diffusion_threshold"),
        "sketch": (*_series, "diffusion_scaling", "diffusion_dim"),
    }
    """Settings that arrays on disk depend on, by form; top-k entries are scaled afterwards."""

    settings = (
        *(*_series, "diffusion_scaling", "diffusion_form"),
        *("diffusion_topk", "diffusion_threshold", "diffusion_dim"),
    )

    @staticmethod
    def form_bytes(form: str, matrix: sp.csr_array, settings: Any) -> int:
        """Estimate the peak memory of a form beside T.

        Args:
            matrix: T, (N, N).
        """
        num_nodes = int(matrix.shape[0])
        block = 8 * 4 * _COLUMNS * num_nodes  # a step of the series and squares of it
        if form == "dense":  # for PPR beside the square matrix that is inverted
            inner = int(reached_nodes(matrix).size)
            square = inner**2 if settings.diffusion == "ppr" else 0
            return 4 * (inner * num_nodes + square) + block
        if form == "implicit":  # the transpose, and a product
            return 8 * int(matrix.nnz) + block
        if form == "topk":  # the entries as found, as kept and transposed, and work arrays
            from hpgmn.statistics.push import worker_bytes

            entries = num_nodes * min(settings.diffusion_topk, num_nodes)
            per_thread = worker_bytes(num_nodes, settings.diffusion)
            return int(3 * 8 * entries + torch.get_num_threads() * per_thread)
        # The result, a step of the series, 256 bytes a node to hash names, torch's copies of T.
        columns = settings.diffusion_dim + 3 * SKETCH_BLOCK + 64
        return int(4 * num_nodes * columns + 16 * int(matrix.nnz))

    @staticmethod
    def choose_form(
        matrix: sp.csr_array, settings: Any, device: torch.device, *, sketched: bool
    ) -> str:
        """Return the form to build; raise HPGMNError before any work if it does not fit.

        Args:
            matrix: T, (N, N).
            sketched: whether ``auto`` means the sketch (:func:`diffusion_is_sketched`).
        """
        num_nodes, free = matrix.shape[0], free_bytes(device)
        needed = {name: Diffusion.form_bytes(name, matrix, settings) for name in FORMS}
        form, reason = settings.diffusion_form, "as set"
        if form == "auto":
            limit = definitions.DENSE_LIMIT_BYTES
            form, reason = "dense", f"a matrix takes at most {format_bytes(limit)}"
            if sketched:
                form, reason = "sketch", f"nodes times edges exceed {definitions.IMPLICIT_LIMIT:,}"
            elif num_nodes**2 * 4 > limit:
                form, reason = "implicit", f"a matrix takes {format_bytes(num_nodes**2 * 4)}"
            elif needed["dense"] > free:
                form, reason = "implicit", f"a matrix does not fit into {format_bytes(free)}"
        log_form("Diffusion", num_nodes, form, needed[form], reason)
        is_slow = num_nodes * matrix.nnz > definitions.IMPLICIT_LIMIT
        if needed[form] > free:
            fitting = {
                name: needed[name]
                for name in FORMS
                if needed[name] <= free and not (name == "implicit" and is_slow)
            }
            smaller = Remedy("Use a smaller sketch", setting="diffusion_dim")
            if form == "topk":
                smaller = Remedy("Keep fewer entries of a row", setting="diffusion_topk")
            raise does_not_fit("diffusion", form, num_nodes, needed[form], free, fitting, smaller)
        if form == "implicit" and is_slow:
            logger.warning("The implicit form is slow on this graph; diffusion_form=sketch is not.")
        return str(form)

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        source = request.source
        matrix = transition(request.adjacency, settings.normalization, settings.diffusion_self_loop)
        # A trained model names its sketch in its settings.
        sketched = source.width is None and diffusion_is_sketched(source.graph, settings)
        form = self.choose_form(matrix, settings, source.device, sketched=sketched)
        read = select(settings, self.stored[form])
        if form == "topk":
            entries = self._largest_entries(request, matrix, read)
            rows = scale_attributes(entries, settings.diffusion_scaling)
            return source.reindex(SparseRows(SparseMatrix(rows, source.device)))
        if form == "sketch":
            return self._sketch(request, matrix, read)
        if form == "implicit":
            return source.reindex(ImplicitDiffusion(matrix, read, source.device))
        on = rounding_environment(torch.device("cpu"))
        arrays = source.cache.arrays(
            request.recipe("Diffusion of the dense form", {**read.as_dict(), "on": on}),
            lambda: dense_arrays(matrix, read),
        )
        return source.reindex(DenseDiffusion(arrays, source.device))

    @staticmethod
    def _sketch(request: Request, matrix: sp.csr_array, settings: Selection) -> Statistic:
        source = request.source

        def compute() -> dict[str, Array]:
            on_device, keys = SparseMatrix(matrix, source.device), node_keys(source.graph)
            return {"rows": sketch(on_device, keys, settings).cpu().numpy()}

        recipe = request.recipe(
            "Diffusion of the sketch form",
            {**settings.as_dict(), "on": rounding_environment(source.device)},
            names=source.cache.digest("names", source.graph.node_ids),
        )
        arrays = source.cache.arrays(recipe, compute)
        return DenseRows(torch.from_numpy(arrays["rows"]).to(source.device))

    @staticmethod
    def _largest_entries(
        request: Request, matrix: sp.csr_array, settings: Selection
    ) -> sp.csr_array:
        from hpgmn.statistics.push import largest_entries, prepare_push

        nodes, progress = request.source.nodes, request.source.progress
        return request.source.cache.sparse(  # bit-identical for any number of threads
            request.recipe(
                "Diffusion of the topk form",
                settings.as_dict(),
                **({} if nodes is None else {"nodes": array_digest(nodes)}),
            ),
            lambda: largest_entries(
                matrix,
                settings,
                progress=None if progress is None else partial(progress, "diffusion"),
                nodes=nodes,
            ),
            lambda: prepare_push(settings.diffusion),
        )
