"""Figures: what is drawn is what the measurements say."""

from __future__ import annotations

import builtins
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from graft.bench.figures import (
    FAMILIES,
    batches,
    components,
    conditions,
    draw_all,
    speedup,
    stages,
)
from graft.bench.figures.data import Data
from graft.bench.figures.style import LOOKS, rc_context, styles_for
from graft.bench.measurement import Measurement

from .figure_data import KINDS, METHODS, make_measurement, make_run


@pytest.fixture(autouse=True)
def _rc() -> Iterator[None]:
    with rc_context():
        yield


@pytest.fixture(scope="module")
def run() -> list[Measurement]:
    return make_run(tasks=("chat", "code"), prompts=2, temperatures=(0.0, 1.0), batches=(1, 4))


# ---- files


def test_every_figure_becomes_a_png_and_a_valid_svg(tmp_path: Path, run: list[Measurement]) -> None:
    notes: list[str] = []
    paths = draw_all(run, tmp_path / "new" / "folder", task_kinds=KINDS, notes=notes)
    assert notes == []
    names = [*FAMILIES, "token_kinds"]
    assert [p.name for p in paths] == [f"{n}.{kind}" for n in names for kind in ("png", "svg")]
    assert sorted(paths) == sorted((tmp_path / "new" / "folder").iterdir())  # nothing half-written
    for path in paths:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("}svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_measurements_give_the_same_svg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graft.bench.figures.FAMILIES", {"depth": FAMILIES["depth"]})
    answers = make_run(("plain", "graft"), ("chat",), 2)
    first, second = ([p.read_bytes() for p in draw_all(answers, tmp_path)] for _ in range(2))
    assert len(first) == 2
    assert first == second


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.bench.figures.FAMILIES", {"depth": FAMILIES["depth"]})
    answers = make_run(("plain", "graft"), ("chat",), 2)
    before = {p: p.read_bytes() for p in draw_all(answers, tmp_path)}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ValueError, match=r"cannot be written to .*No space left"):
        draw_all(make_run(("plain", "graft"), ("code",), 2), tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(ValueError, match="figures cannot be written to"):
        draw_all(make_run(("plain", "graft"), ("chat",), 1), place)


def test_the_settings_of_matplotlib_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graft.bench.figures.FAMILIES", {"depth": FAMILIES["depth"]})
    with matplotlib.rc_context({"font.size": 31.0}):
        draw_all(make_run(("plain", "graft"), ("chat",), 1), tmp_path)
        assert matplotlib.rcParams["font.size"] == 31.0


# ---- matplotlib is optional


def test_importing_the_package_does_not_import_matplotlib() -> None:
    code = "import sys, graft.bench.figures; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_matplotlib_the_user_is_told_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install 'graft-decoding\[bench\]'") as error:
        draw_all(make_run(("plain", "graft"), ("chat",), 1), tmp_path / "figures")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "figures").exists()


# ---- data that are not there


@pytest.mark.parametrize(
    ("answers", "left_out"),
    [
        ([], set(FAMILIES)),
        (make_run(("hf",), ("chat",), 2), set(FAMILIES)),
        (make_run(("plain",), ("chat",), 2), set(FAMILIES)),
        ([make_measurement(name, tokens=1) for name in METHODS], set(FAMILIES)),
        (make_run(("plain", "graft"), ("chat",), 2), {"components", "temperature", "batch"}),
        (make_run(METHODS[1:], ("chat",), 2), {"speedup_tau", "temperature", "batch"}),
    ],
    ids=["nothing", "hf", "plain", "one token", "two methods", "no plain"],
)
def test_what_cannot_be_drawn_is_left_out_and_said(
    answers: list[Measurement],
    left_out: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("graft.bench.figures.save", lambda _, folder, name: [folder / name])
    notes: list[str] = []
    drawn = {p.stem for p in draw_all(answers, tmp_path, notes=notes, task_kinds={})}
    said = {note.split(" is left out: ")[0] for note in notes}
    assert said == left_out | {"token_kinds"}
    assert drawn == set(FAMILIES) - left_out


# ---- style


def test_methods_differ_without_colour() -> None:
    assert len({marker for _, marker, _ in LOOKS.values()}) == len(LOOKS)
    assert len({hatch for _, _, hatch in LOOKS.values()}) == len(LOOKS)


def test_a_method_looks_the_same_in_all_figures_and_its_variants_alike(
    run: list[Measurement],
) -> None:
    figures: list[Callable[[Data], Any]] = [
        stages.draw_depth,
        conditions.draw_context,
        conditions.draw_temperature,
        conditions.draw_course,
        batches.draw,
        speedup.draw,
    ]
    looks = {
        (line.get_color(), line.get_marker())
        for draw in figures
        for line in draw(Data(run)).axes[0].lines
        if line.get_label() == "graft"
    }
    assert looks == {LOOKS["graft"][:2]}
    cold, warm = styles_for({"graft cold": "graft", "graft warm": "graft"}).values()
    assert (cold.color, cold.marker) == (warm.color, warm.marker)
    assert cold.fill != warm.fill
    assert cold.bars["facecolor"] != warm.bars["facecolor"]


def test_the_main_column_of_a_method_is_the_filled_one() -> None:
    answers = make_run(("graft",), ("chat",), 2, warm=("graft",))
    more_cold = [m for m in answers if m.matrix == "cold" or m.id == "chat-0"]
    for run, main in ((answers, "graft warm"), (more_cold, "graft cold")):
        styles = Data(run).styles
        assert [label for label, style in styles.items() if style.fill == "full"] == [main]
        assert len(styles) == 2


def test_a_legend_names_methods_in_order_from_left_to_right() -> None:
    figure = speedup.draw(Data(make_run((*METHODS, "hf-lookup"), ("chat",), 2)))
    figure.draw_without_rendering()
    boxes = {t.get_text(): t.get_window_extent() for t in figure.legends[0].get_texts()}
    read = sorted(boxes, key=lambda name: (-round(boxes[name].y0, -1), boxes[name].x0))
    assert read == [name for name in LOOKS if name in boxes]
    assert len(read) == 8


def test_texts_of_a_crowded_figure_do_not_overlap() -> None:
    answers = make_run((*METHODS, "hf-lookup"), [f"task-{i}" for i in range(15)], 2)
    figure = components.draw(Data(answers))
    figure.draw_without_rendering()
    texts = [*figure.axes[0].get_yticklabels(), *figure.legends[0].get_texts()]
    boxes = [text.get_window_extent() for text in texts]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:i])
