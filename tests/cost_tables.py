"""Costs for engines whose spending must not depend on the machine."""

from __future__ import annotations

from graft.costs import Costs

# Rows and steps cost nothing, so everything is drafted and verified.
FREE = Costs((1,), (0.01,))
# A row costs a quarter of a forward and a step as much: much is left out.
DEAR = Costs((1, 61), (0.01, 0.16), draft=0.001, step=0.0025, round=0.001)
