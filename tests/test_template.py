"""Templates: prefix-closed orders of rank paths, and how they are derived."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.template import RankPath, Template, default_template, derive, load_template
from tests.random_trees import templates

CPU = torch.device("cpu")
PATHS: tuple[RankPath, ...] = ((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 2, 1))


@pytest.mark.parametrize(
    "paths",
    [
        ((0,), (0,)),  # repeated
        ((0, 0), (0,)),  # before its parent
        ((0,), (1, 0)),  # without a parent
        ((-1,),),
        ((0,), (0, -1)),
        ((),),  # the root is no path
    ],
)
def test_broken_orders_are_refused(paths: tuple[RankPath, ...]) -> None:
    with pytest.raises(ValueError, match="template path"):
        Template(paths)


def test_the_empty_template_has_no_levels() -> None:
    empty = Template(())
    assert (len(empty), empty.max_depth, empty.ranks_used) == (0, 0, 0)
    assert empty.levels(CPU) == []
    assert empty.parents(CPU).tolist() == [0]


def test_nodes_are_numbered_behind_the_root() -> None:
    template = Template(PATHS)
    assert template.parents(CPU).tolist() == [0, 0, 0, 1, 1, 2, 4]
    assert template.depths(CPU).tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert (template.max_depth, template.ranks_used) == (3, 3)


@settings(deadline=None, max_examples=60)
@given(templates())
def test_levels_hold_every_node_once_with_its_parent_and_rank(template: Template) -> None:
    parents, depths = template.parents(CPU), template.depths(CPU)
    seen: dict[int, RankPath] = {0: ()}
    for depth, level in enumerate(template.levels(CPU), 1):
        for node, parent, rank in zip(*(t.tolist() for t in level), strict=True):
            assert depths[node] == depth
            assert parents[node] == parent
            seen[node] = (*seen[parent], rank)
    assert [seen[i] for i in range(len(seen))] == [(), *template.paths]


@settings(deadline=None, max_examples=60)
@given(templates(), st.integers(0, 14))
def test_a_beginning_of_a_template_is_a_template(template: Template, size: int) -> None:
    assert template.take(size).paths == template.paths[:size]


def test_a_template_is_cut_to_the_ranks_that_are_there() -> None:
    assert Template(PATHS).within(2).paths == ((0,), (1,), (0, 0), (1, 0))
    assert Template(PATHS).within(3).paths == PATHS


def test_derive_orders_paths_by_how_often_text_follows_them() -> None:
    # Of 400 positions: rank 0 follows 300 times, rank 1 100 times; after a 1 always comes a 0.
    template = derive([[0, 0, 0, 1] * 100], size=6, max_depth=2)
    counts = {(0,): 300, (1,): 100, (0, 0): 200, (0, 1): 100, (1, 0): 99}
    assert template.paths[:2] == ((0,), (0, 0))
    assert [counts.get(p, 0) for p in template.paths] == [300, 200, 100, 100, 99, 0]


def test_derive_counts_a_miss_as_a_position_and_ends_paths_there() -> None:
    template = derive([[0, -1] * 50], size=3, max_depth=5)
    # (0, 0) never happened: it is worth its parent's 1/2 times the share 1/2 of rank 0.
    assert template.paths == ((0,), (0, 0), (0, 0, 0))


def test_derive_measures_counted_and_rare_paths_by_one_scale() -> None:
    # Of 120 positions rank 0 follows at 40, rank 1 at 20: (1,) was seen 20 times, 1/6; (0, 0)
    # never, so it is worth 1/3 times 1/3.
    template = derive([[0, -1]] * 40 + [[1, -1]] * 20, size=3, max_depth=2)
    assert template.paths == ((0,), (1,), (0, 0))


def test_derive_does_not_join_texts() -> None:
    joined = derive([[0, 1] * 40], size=4, max_depth=2)
    apart = derive([[0]] * 40 + [[1]] * 40, size=4, max_depth=2)
    assert joined.paths[:3] == ((0,), (0, 1), (1,))
    assert apart.paths[:2] == ((0,), (1,))


def test_paths_too_rare_to_count_are_ordered_by_the_product_of_their_shares() -> None:
    # Rank shares 12/19, 4/19, 3/19: nothing is seen 20 times.
    template = derive([[r] for r in [0] * 12 + [1] * 4 + [2] * 3], size=5, max_depth=2)
    share = (12 / 19, 4 / 19, 3 / 19)
    values = [float(torch.tensor([share[r] for r in path]).prod()) for path in template.paths]
    assert template.paths[0] == (0,)
    assert values == sorted(values, reverse=True)
    assert (0, 0) in template.paths


rank_texts = st.lists(st.lists(st.integers(-1, 4), max_size=30), max_size=4)


@settings(deadline=None, max_examples=80)
@given(rank_texts, st.integers(0, 20), st.integers(1, 4))
def test_derive_gives_a_template_of_the_size_asked_for(
    texts: list[list[int]], size: int, max_depth: int
) -> None:
    template = derive(texts, size, max_depth)
    width = max((r for text in texts for r in text), default=-1) + 1
    possible = sum(width**depth for depth in range(1, max_depth + 1))
    assert len(template) == min(size, possible)
    assert template.max_depth <= max_depth
    assert template.ranks_used <= width


@settings(deadline=None, max_examples=40)
@given(rank_texts, st.integers(0, 20))
def test_a_smaller_derivation_is_the_beginning_of_a_larger_one(
    texts: list[list[int]], size: int
) -> None:
    assert derive(texts, size, 3).paths == derive(texts, size + 5, 3).paths[:size]


def test_the_shipped_template_fits_a_matrix_of_eight() -> None:
    template = default_template()
    assert len(template) > 0
    assert template.ranks_used <= 8
    assert template.paths[0] == (0,)
    for size in range(len(template) + 1):
        assert len(template.take(size)) == size


@settings(deadline=None, max_examples=20)
@given(templates())
def test_a_template_is_read_from_a_file(
    tmp_path_factory: pytest.TempPathFactory, template: Template
) -> None:
    file = tmp_path_factory.mktemp("templates") / "t.json"
    file.write_text(json.dumps({"paths": template.paths, "source": "not read"}))
    assert load_template(file) == load_template(str(file)) == template


def test_the_shipped_file_is_one_that_users_could_have_written() -> None:
    with resources.as_file(resources.files("graft") / "data" / "template.json") as file:
        assert load_template(file) == default_template()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("{", "Expecting"),
        ("3", "not subscriptable"),
        ("[[0]]", "list indices"),
        ("{}", "'paths'"),
        ('{"paths": 3}', "not iterable"),
        ('{"paths": [3]}', "not iterable"),
        ('{"paths": ["ab"]}', "integer"),
        ('{"paths": [[0.5]]}', "integer"),
        ('{"paths": [[null]]}', "integer"),
        ('{"paths": [[0, 0], [0]]}', "[0, 0] is repeated"),
        ('{"paths": [[0], [0]]}', "[0] is repeated"),
        ('{"paths": [[-1]]}', "[-1] is repeated, has a negative rank"),
        ('{"paths": [[]]}', "[] is repeated"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_file_is_named_with_the_form_it_should_have(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"^template [^\n]+\Z") as found:
        load_template(file)
    for word in (str(file), words, '{"paths": [[0], [0, 0], [1], ...]}'):
        assert word in str(found.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json cannot be read: No such file"):
        load_template(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory"):
        load_template(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary is no JSON file"):
        load_template(tmp_path / "binary")
