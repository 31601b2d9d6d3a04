"""ValuedGrafter: the budget goes to the likeliest nodes, wherever they hang. [ours]

It joins growth (`graft.growth`), what is retrieved from (matrix and contexts) and what is learnt
of them (`graft.estimates`). After each verification every candidate behind a visited node is
compared with the target's draw there, whether it had a slot or not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graft.contexts import ContextTable
from graft.draft import Draft
from graft.estimates import Estimates
from graft.evidence import Cells
from graft.grafting import Grafted
from graft.growth import Grown, Rules, grow
from graft.matrix import EMPTY
from graft.offers import Lookups
from graft.pruning import DraftPlan
from graft.retrieval import MatrixMemory, Observer, Retrieved
from graft.rows import rows_at
from graft.slot_tables import SlotTables
from graft.spending import Spending
from graft.tree import Source
from graft.verify import Walk


class ValuedGrafter:
    """Grafts by value.

    Args:
        plan: its budget and beam.
        spending: says what nodes are of use.
        cells, estimates: what candidates are worth.
        matrix: retrieves and learns successors of single tokens; None leaves them out.
        contexts: followers of longer contexts; None leaves them out.
        levels: depth of trees at most.
        shared: all sequences use the first table of contexts; else each slot has its own.
        learn_prompts: contexts learn from prompts too.
        rules: what may hang where.
    """

    def __init__(
        self,
        plan: DraftPlan,
        spending: Spending,
        cells: Cells,
        estimates: Estimates,
        matrix: MatrixMemory | None,
        contexts: ContextTable | None,
        *,
        levels: int,
        shared: bool = True,
        learn_prompts: bool = True,
        rules: Rules = Rules(),  # noqa: B008 (an immutable)
    ) -> None:
        self._plan, self._spending, self._levels = plan, spending, levels
        self._cells, self._estimates = cells, estimates
        self.matrix, self._contexts = matrix, contexts
        tables = 1 if contexts is None else contexts.count
        self._tables = SlotTables(tables, cells.voice.device, shared=shared)
        self._longest = 1 if contexts is None else contexts.longest
        self._learn_prompts, self._rules = learn_prompts, rules
        self._grown: Grown | None = None

    def look_up(self, roots: Tensor) -> Retrieved | None:
        """Nothing: what is retrieved depends on the draft."""
        return None

    def promise(self, history: Tensor, length: Tensor) -> list[float] | None:
        """It would have to be waited for."""
        return None

    def graft(
        self, draft: Draft, retrieved: Retrieved | None, history: Tensor, length: Tensor
    ) -> Grafted:
        """The likeliest nodes."""
        batch = len(length)
        table = self._estimates.table(batch)
        windows = self._windows(history, length.unsqueeze(1)).squeeze(1)
        grown = self._grown = grow(
            windows,
            length,
            draft,
            Lookups(
                self._contexts,
                self._successors if self.matrix is not None else None,
                self._tables.first(batch).unsqueeze(1),
            ),
            self._cells,
            table,
            budget=self._plan.budget,
            levels=self._levels,
            beam=self._plan.beam,
            rules=self._rules,
            least=self._spending.least(),
        )
        scores = torch.nn.functional.pad(draft.scores, (0, 1), value=torch.nan)
        drafted = grown.tree.sources == Source.DRAFT
        shared = drafted & grown.retrieved
        return Grafted(
            grown.tree,
            scores.gather(1, grown.drafted),
            shared,
            grown.by_context & ~drafted,
            drafted.sum(1),
            shared.sum(1),
            *self._hits(grown),
            torch.zeros_like(length),
            grown.values,
            self._unaided(grown, table),
        )

    def learn(
        self, grafted: Grafted, logits: Tensor, walk: Walk, history: Tensor, length: Tensor
    ) -> Tensor:
        """Candidates, contexts and successors."""
        self.learn_draws(walk, history, length)
        if self.matrix is None:
            return length.new_zeros(())
        return self.matrix.update(grafted.tree, logits, walk)

    def learn_draws(self, walk: Walk, history: Tensor, length: Tensor) -> None:
        """What can be learnt without logits: candidates and contexts."""
        assert self._grown is not None, "graft() comes first"
        self._judge(self._grown, walk)
        self._read(walk, history, length)

    def admit(self, slot: int, tokens: Tensor, known: int = 0) -> Observer | None:
        """Learn from a prompt; contexts of what is new in it, for a repetition would count."""
        self._estimates.admit(slot)
        if self._contexts is not None:
            if not self._tables.shared:
                self._contexts.clear(self._tables[slot])
            if self._learn_prompts:
                known = known if self._tables.shared else 0
                self._contexts.learn_text(tokens, self._tables[slot], known)
        return self.matrix.admit(slot, tokens) if self.matrix is not None else None

    def move(self, source: int, target: int) -> None:
        """What is a sequence's own goes with it."""
        self._estimates.move(source, target)
        self._tables.move(source, target)
        if self.matrix is not None:
            self.matrix.move(source, target)

    def _successors(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        assert self.matrix is not None
        return self.matrix.successors(tokens)

    def _hits(self, grown: Grown) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lookups and hits, of the matrix and of contexts: int64 [B] each."""
        held = grown.offers.tokens != EMPTY
        first = grown.columns.contexts
        asked = grown.asked.sum(1)
        zero = torch.zeros_like(asked)
        by_matrix = by_context = (zero, zero)
        if grown.columns.matrix:
            by_matrix = asked, (held[:, :, first] & grown.asked).sum(1)
        if first:
            by_context = asked, (held[:, :, :first].any(2) & grown.asked).sum(1)
        return *by_matrix, *by_context

    def _unaided(self, grown: Grown, table: Tensor) -> Tensor:
        """What each node would be worth once its parent is accepted, had the drafter not named it:
        float32 [B, K + 1]."""
        cells = self._cells.without_drafter(grown.cells)
        return table.gather(1, cells).where(cells > 0, 0.0)

    def _judge(self, grown: Grown, walk: Walk) -> None:
        """Compare what was offered behind visited nodes with the target's draws."""
        level = torch.arange(walk.nodes.shape[1], device=walk.nodes.device)
        place = grown.place.gather(1, walk.nodes)
        asked = grown.offers.tokens.shape[1]
        visited = (level <= walk.accepted.unsqueeze(1)) & (place < asked)
        index = place.clamp(max=asked - 1)
        tokens, cells, valid = (rows_at(part, index) for part in grown.offers)
        counted = valid & visited.unsqueeze(2)
        right = tokens == walk.tokens.unsqueeze(2)
        self._estimates.learn(cells.flatten(1), counted.flatten(1), right.flatten(1))

    def _windows(self, history: Tensor, ends: Tensor) -> Tensor:
        """The tokens in front of positions `ends` [B, n]: [B, n, longest context]."""
        back = torch.arange(self._longest, 0, -1, device=ends.device)
        index = (ends.unsqueeze(2) - back).clamp(min=0)
        return history.gather(1, index.flatten(1)).view(index.shape)

    def _read(self, walk: Walk, history: Tensor, length: Tensor) -> None:
        """Learn what followed what in the committed tokens."""
        if self._contexts is None:
            return
        level = torch.arange(walk.tokens.shape[1], device=length.device)
        at = length.unsqueeze(1) + level  # position of each draw
        windows = self._windows(history, at).flatten(0, 1)
        followers = walk.tokens.where(level <= walk.accepted.unsqueeze(1), -1)
        tables = self._tables.first(len(length)).unsqueeze(1).expand_as(at)
        self._contexts.learn(windows, followers.flatten(), at.flatten(), tables.flatten())
