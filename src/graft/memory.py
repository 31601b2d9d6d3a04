"""Memory: what an engine has learnt while decoding, and every later request may use.

The matrix is always there; contexts and estimates are made when a policy first asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from graft.contexts import ORDERS, ROWS, ContextTable
from graft.estimates import Estimates
from graft.evidence import Cells
from graft.footprint import Part
from graft.matrix import AdjacencyMatrix
from graft.prior import default_prior
from graft.worth import Worth

# Of the contexts of one request, where requests share nothing.
REQUEST_ROWS = 1 << 15


class Memory:
    """What one engine has learnt.

    Args:
        matrix: of the target's tokens, beside the target; the contexts have as many tables.
        private: each table is of one request, and smaller; estimates move within one alone.
    """

    def __init__(self, matrix: AdjacencyMatrix, *, private: bool = False) -> None:
        self.matrix = matrix
        self._private = private
        self._contexts: ContextTable | None = None
        self._estimates: Estimates | None = None
        self.worth = Worth()

    @property
    def contexts(self) -> ContextTable:
        """Followers of longer contexts."""
        if self._contexts is None:
            matrix = self.matrix
            self._contexts = ContextTable(
                matrix.token_count,
                matrix.ids.device,
                rows=REQUEST_ROWS if self._private else ROWS,
                count=matrix.count,
            )
        return self._contexts

    @cached_property
    def cells(self) -> Cells:
        """What candidates are told apart by."""
        return Cells(len(ORDERS), self.matrix.ids.device)

    @property
    def estimates(self) -> Estimates:
        """What candidates were worth."""
        if self._estimates is None:
            prior = default_prior(self.cells)
            self._estimates = Estimates(prior, self.cells.voice, shares=not self._private)
        return self._estimates

    def footprint(self) -> list[Part]:
        """What it holds in memory, as far as it was made."""
        parts = [Part("matrix", self.matrix.bytes)]
        if self._contexts is not None:
            parts.append(Part("contexts", self._contexts.bytes))
        return parts

    def clear(self) -> None:
        """Forget everything."""
        self.matrix.clear()
        self._contexts = self._estimates = None
        self.worth = Worth()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was learnt, by name, as it stands in memory."""
        size = self.matrix.token_count
        out = {"ids": self.matrix.ids[:size], "chances": self.matrix.chances[:size]}
        if self._contexts is not None:
            out |= {f"contexts.{name}": tensor for name, tensor in self._contexts.tensors().items()}
        if self._estimates is not None:
            out |= {"trials": self._estimates.trials, "hits": self._estimates.hits}
            out |= self.worth.tensors()
        return out

    @torch.inference_mode(False)
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Hold what `tensors` gave, and forget the rest.

        Raises:
            ValueError: for tensors of another shape.
        """
        self._contexts = self._estimates = None
        self.worth = Worth()
        if any(name.startswith("contexts.") for name in tensors):
            _ = self.contexts  # made when asked for
        if "trials" in tensors:
            _ = self.estimates
        own = self.tensors()
        if own.keys() != tensors.keys():
            raise ValueError(f"a memory of {sorted(tensors)}, but one of {sorted(own)} is needed")
        for name, tensor in tensors.items():
            if own[name].shape != tensor.shape:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}, but {list(own[name].shape)} is needed"
                )
            own[name].copy_(tensor)
        if "trials" in tensors:
            self.estimates.refresh()

    def copy(self) -> Memory:
        """Another memory that holds the same."""
        out = Memory(self.matrix.copy())
        out.take(self.tensors())
        return out
