"""Estimates: how often candidates with like evidence are right, learnt while decoding. [ours]

Each cell (`graft.evidence`) counts trials and hits. A trial is any candidate whose parent was
visited by a walk, whether it stood in the tree or not: the target's draw behind the parent says
what would have become of it. So what is counted does not depend on what was chosen, and a source
that lost its slots is still heard. Candidates behind nodes that were not visited say nothing and
are not counted: given its evidence a candidate is judged where its parent is right, which is what
the estimate is of.

    rate[cell] = (hits + PRIOR * prior) / (trials + PRIOR)
    estimate   = rate[cell] * factor[sequence, voice]

The rates are shared and move slowly (a window of trials); the factors, hits over what the rates
had promised, are each sequence's own and move within some rounds. In the second factor
sequences differ: a source that never pays in one of them loses its slots there soon.

This module knows cells alone, not who stands behind them.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRIOR = 20.0  # trials that a prior counts for
WINDOW = 2000.0  # trials that a cell remembers
MEMORY = 0.97  # share of a sequence's own counts that a round leaves
STEADY = 1.5  # hits that a factor of 1 counts for
MOST = 0.999  # that an estimate says


class Estimates:
    """Rates of cells, and factors of sequences.

    Args:
        prior: float32 [cells], rate of each before anything is known.
        voice: int64 [cells], who speaks, from 0.
        slots: sequences that decode side by side.
        learns: whether counts move anything.
        shares: whether they move the rates, which all sequences share.
    """

    def __init__(
        self,
        prior: Tensor,
        voice: Tensor,
        slots: int = 1,
        *,
        learns: bool = True,
        shares: bool = True,
    ) -> None:
        self.prior, self.voice, self.learns, self.shares = prior, voice, learns, shares
        self.trials = torch.zeros_like(prior)
        self.hits = torch.zeros_like(prior)
        self.rates = prior.clone()
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Make room for sequences; all begin anew."""
        voices = int(self.voice.max()) + 1
        self.promised = self.prior.new_zeros(slots, voices)
        self.kept = self.prior.new_zeros(slots, voices)  # hits
        self.factors = self.prior.new_ones(slots, voices)

    def table(self, batch: int) -> Tensor:
        """Estimates of all cells for the running sequences: float32 [batch, cells]."""
        return (self.rates * self.factors[:batch, self.voice]).clamp(max=MOST)

    def learn(self, cells: Tensor, counted: Tensor, right: Tensor) -> None:
        """Take in a round: cells [B, n], which are counted and which were right, bool [B, n]."""
        if not self.learns:
            return
        new, won = counted.float(), (counted & right).float()
        batch, flat = len(cells), cells.flatten()
        # What the rates said before this round.
        promised = self.rates[cells] * new
        voices = self.voice[cells]
        self.promised[:batch] = (self.promised[:batch] * MEMORY).scatter_add(1, voices, promised)
        self.kept[:batch] = (self.kept[:batch] * MEMORY).scatter_add(1, voices, won)
        self.factors[:batch] = (self.kept[:batch] + STEADY) / (self.promised[:batch] + STEADY)
        if not self.shares:
            return
        self.trials.index_add_(0, flat, new.flatten())
        self.hits.index_add_(0, flat, won.flatten())
        over = (self.trials / WINDOW).clamp(min=1.0)
        self.trials /= over
        self.hits /= over
        self.refresh()

    def refresh(self) -> None:
        """Make the rates those of the counts."""
        self.rates = (self.hits + PRIOR * self.prior) / (self.trials + PRIOR)

    def admit(self, slot: int) -> None:
        """A sequence begins in a slot."""
        self.promised[slot] = 0
        self.kept[slot] = 0
        self.factors[slot] = 1

    def move(self, source: int, target: int) -> None:
        """The sequence of slot `source` now stands in slot `target`."""
        for table in (self.promised, self.kept, self.factors):
            table[target] = table[source]
