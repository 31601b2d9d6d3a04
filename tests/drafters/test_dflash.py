"""DFlashDrafter against a slow reference: prefill, rounds, batches, windows, stale rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.drafters.base import Drafter
from graft.drafters.dflash.drafter import DFlashDrafter
from graft.drafters.dflash.loader import load_dflash
from graft.pruning import DraftPlan, dense
from graft.tree import Source
from tests.drafters.dflash_files import (
    CONFIG,
    LAYERS,
    SLIDING,
    VOCAB,
    WIDTH,
    Reference,
    stored,
    target_config,
    target_parts,
    write_checkpoint,
)


class Play:
    """A drafter and its reference through the same rounds of random acceptances."""

    def __init__(self, folder: Path, lengths: list[int], reference: Reference) -> None:
        self.drafter = load_dflash(folder, target_config(), *target_parts())
        self.reference = reference
        self.random = torch.Generator().manual_seed(3)
        self.features: list[list[Tensor]] = [[] for _ in lengths]  # per position [F]
        self.drafter.open(len(lengths), 8)
        for slot, length in enumerate(lengths):
            for chunk in (length - 2, 2):  # two chunks: the second follows the first
                rows = self.rows(chunk)
                self.drafter.prefill(slot, torch.zeros(length, dtype=torch.int64), rows)
                self.features[slot] += list(rows)
        self.new_roots()

    def rows(self, *shape: int) -> Tensor:
        return torch.randn(*shape, 2 * WIDTH, generator=self.random)

    def new_roots(self) -> None:
        self.roots = torch.randint(0, VOCAB, (len(self.features),), generator=self.random)

    def error(self) -> float:
        """Largest difference of the block's logits from the reference's."""
        found = self.drafter.logits(self.roots.unsqueeze(1), 4)
        wanted = [
            self.reference.logits(features, int(root))
            for features, root in zip(self.features, self.roots, strict=True)
        ]
        return float((found.detach().double() - torch.stack(wanted)).abs().max())

    def commit(self, paths: list[list[int]], nodes: int = 9) -> None:
        features = self.rows(len(paths), nodes)
        self.drafter.commit(paths, features)
        for slot, path in enumerate(paths):
            self.features[slot] += [features[slot, node] for node in (0, *path)]
        self.new_roots()

    def round(self) -> None:
        counts = torch.randint(0, 5, (len(self.features),), generator=self.random).tolist()
        paths = [torch.randperm(8, generator=self.random)[:n].add(1).tolist() for n in counts]
        self.commit([sorted(path) for path in paths])


def play(folder: Path, lengths: list[int], config: dict[str, Any], **reference: Any) -> Play:
    write_checkpoint(folder, config)
    return Play(folder, lengths, Reference(stored(folder), **reference))


@pytest.mark.parametrize("lengths", [[5], [9, 3, 6]])
def test_logits_are_the_references_through_rounds(tmp_path: Path, lengths: list[int]) -> None:
    game = play(tmp_path, lengths, CONFIG)
    assert game.error() < 1e-4
    for _ in range(4):
        game.round()
        assert game.error() < 1e-4


@pytest.mark.parametrize(
    ("changes", "sights"),
    [
        ({}, ((True, 4), (False, None))),  # sliding layers are causal unless the file says no
        ({"is_causal": False}, ((False, 4), (False, None))),
        ({"is_causal": True}, ((True, 4), (True, None))),
    ],
)
def test_windows_and_causal_layers(tmp_path: Path, changes: Any, sights: Any) -> None:
    game = play(tmp_path, [9, 3], {**CONFIG, **SLIDING, **changes}, sights=sights)
    for _ in range(2):
        assert game.error() < 1e-4
        game.round()
    assert game.error() < 1e-4


def test_scales_and_cap(tmp_path: Path) -> None:
    own = {"input_embedding_scale": 2.5, "output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    config = {**CONFIG, "dflash_config": {**CONFIG["dflash_config"], **own}}
    assert play(tmp_path, [5], config, scales=(2.5, 0.5, 3.0)).error() < 1e-4


# --- controls: what a wrong drafter would compute must be told apart ---


def _causal(game: Play) -> None:
    game.reference.sights = ((True, None), (True, None))


def _window(game: Play) -> None:
    game.reference.sights = ((False, 6), (False, None))


def _swapped(game: Play) -> None:
    halves = [[f.view(2, WIDTH).flip(0).flatten() for f in s] for s in game.features]
    game.features = halves


def _late(game: Play) -> None:
    game.features = [[*s, s[-1]] for s in game.features]  # one row of context too much


def _other_node(game: Play) -> None:
    game.commit([[1, 2], [1], [1]])
    game.features[0][-1] = game.rows(1)[0]


@pytest.mark.parametrize("fault", [_causal, _window, _swapped, _late, _other_node])
def test_faults_are_seen(tmp_path: Path, fault: Callable[[Play], None]) -> None:
    game = play(tmp_path, [9, 3, 6], CONFIG)
    fault(game)
    assert game.error() > 1e-2


# --- stale rows ---


def _poison(drafter: DFlashDrafter) -> None:
    """NaN wherever no committed row stands."""
    store = drafter.store
    for storage in store._storage:
        for slot, length in enumerate(store.lengths):
            storage[:, slot, :, length:] = float("nan")


@pytest.mark.parametrize("lengths", [[5], [20, 3, 6]])
def test_stale_rows_are_never_read(tmp_path: Path, lengths: list[int]) -> None:
    game = play(tmp_path, lengths, CONFIG)
    for _ in range(3):
        _poison(game.drafter)
        assert game.error() < 1e-4
        _poison(game.drafter)
        game.round()


def test_poison_in_a_committed_row_is_seen(tmp_path: Path) -> None:
    game = play(tmp_path, [5], CONFIG)
    game.drafter.store._storage[0][0, 0, 0, 2] = float("nan")
    assert not game.error() < 1e-4


def test_truncate_and_move(tmp_path: Path) -> None:
    game = play(tmp_path, [9, 3, 6], CONFIG)
    assert [game.drafter.reusable(0, common) for common in (4, 20)] == [4, 9]
    game.drafter.truncate(0, 4)
    game.features[0] = game.features[0][:4]
    more = game.rows(3)
    game.drafter.prefill(0, torch.zeros(8, dtype=torch.int64), more)
    game.features[0] += list(more)
    assert game.error() < 1e-4
    game.drafter.move(2, 1)
    game.features = [game.features[0], game.features[2]]
    game.new_roots()
    assert game.error() < 1e-4
    game.round()
    assert game.error() < 1e-4


def test_the_store_grows_and_is_used_again(tmp_path: Path) -> None:
    game = play(tmp_path, [250], CONFIG)
    store = game.drafter.store
    for _ in range(3):
        game.commit([[1, 2, 3]])
    assert store.capacity == 512
    assert game.error() < 1e-4
    game.drafter.open(1, 100)
    assert game.drafter.store is store
    assert store.lengths == [0]
    game.drafter.open(2, 100)
    assert game.drafter.store.slots == 2


# --- what draft() hands over ---


def _drafted(game: Play, plan: DraftPlan) -> Any:
    length = torch.tensor([len(f) + 1 for f in game.features])
    history = torch.zeros(len(length), int(length.max()) + 4, dtype=torch.int64)
    history.scatter_(1, length.unsqueeze(1) - 1, game.roots.unsqueeze(1))
    draft = game.drafter.draft(history, length, plan)
    draft.tree.check_integrity()
    return draft


def test_the_draft_is_the_argmax_chain_with_its_scores(tmp_path: Path) -> None:
    game = play(tmp_path, [9, 3, 6], CONFIG)
    draft = _drafted(game, dense(8, 4, 4))
    logits = torch.stack(
        [game.reference.logits(f, int(r)) for f, r in zip(game.features, game.roots, strict=True)]
    )
    best = logits.log_softmax(dim=-1).max(dim=-1)
    assert draft.tree.tokens.tolist() == torch.cat([game.roots[:, None], best.indices], 1).tolist()
    wanted = torch.cat([torch.zeros(3, 1), best.values.cumsum(1)], 1).float()
    torch.testing.assert_close(draft.scores, wanted, atol=1e-4, rtol=0)
    assert draft.tree.parents.tolist() == [[0, 0, 1, 2, 3]] * 3
    assert draft.tree.depths.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert draft.tree.sources.tolist() == [[Source.TARGET] + [Source.DRAFT] * 4] * 3
    assert draft.tree.max_depth == 4
    assert (draft.kept.tolist(), draft.stage.tolist(), draft.steps) == ([4] * 3, [0] * 3, 1)
    assert draft.confidence.shape == (3, 0)
    assert draft.anchor is None


@pytest.mark.parametrize("most", [3, 8])  # 8: more than the block has
@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.2, 2.0])
def test_the_confident_prefix_is_kept(tmp_path: Path, threshold: float, most: int) -> None:
    game = play(tmp_path, [9, 3, 6], CONFIG)
    plan = DraftPlan(8, 4, 4, checkpoints=(0, 1), thresholds=(threshold, 0.1), kept=(2, 3, most))
    draft = _drafted(game, plan)
    limit = min(most, 4)
    sure = (draft.scores[:, 1:].exp() >= threshold).int().cumprod(1).sum(1)
    assert draft.kept.tolist() == sure.clamp(1, limit).tolist()
    assert draft.stage.tolist() == [0 if n < limit else 2 for n in sure.tolist()]
    assert torch.equal(draft.anchor, draft.kept)
    assert torch.equal(draft.confidence[:, 0], draft.scores[:, 1].exp())
    assert bool((draft.confidence[:, 1:] == -1).all())
    if threshold in (0.0, 2.0):
        assert set(draft.kept.tolist()) == {limit if threshold == 0.0 else 1}


def test_the_budget_bounds_the_chain(tmp_path: Path) -> None:
    game = play(tmp_path, [9, 3], CONFIG)
    whole, short = _drafted(game, dense(8, 4, 4)), _drafted(game, dense(2, 4, 4))
    assert torch.equal(short.tree.tokens, whole.tree.tokens[:, :3])  # the same block, cut
    nothing = _drafted(game, dense(0, 4, 4))
    assert (nothing.tree.width, nothing.kept.tolist(), nothing.steps) == (1, [0, 0], 0)


def test_features_are_asked_for_as_inputs_of_layers(tmp_path: Path) -> None:
    game = play(tmp_path, [5], CONFIG)
    seam: Drafter = game.drafter
    assert load_dflash(tmp_path, target_config(), *target_parts()).reusable(0, 4) == 0
    assert (seam.name, seam.feature_layers) == ("dflash", (5, 2))
    assert max(game.drafter.feature_layers) <= LAYERS


def test_half_precision_stays_close_and_keeps_its_rotary_tables(tmp_path: Path) -> None:
    game = play(tmp_path, [30], CONFIG)
    half = load_dflash(tmp_path, target_config(), *target_parts(), dtype=torch.bfloat16)
    assert half.model.rotary.inv_freq.dtype == torch.float32
    half.open(1, 40)
    half.prefill(0, torch.zeros(30, dtype=torch.int64), torch.stack(game.features[0]))
    roots = game.roots.unsqueeze(1)
    error = (half.logits(roots, 4) - game.drafter.logits(roots, 4)).abs().mean()
    assert 0 < error < 0.3
