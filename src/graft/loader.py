"""`graft.load`: from a model's name to an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from graft.costs import Costs
from graft.drafters.base import Drafter
from graft.drafters.loading import DrafterKind, check_choice, load_drafter
from graft.engine import Engine
from graft.machine import made_for
from graft.matrix import AdjacencyMatrix
from graft.matrix_file import load_matrix, matrix_exists
from graft.models import LoadedModel, ModelError, load_model
from graft.profile import MadeFor, Profile
from graft.profiles import any_profile, find_profile
from graft.self_test import self_test
from graft.settings import DRAFTING, EngineSettings
from graft.shipped_heads import choose_head
from graft.target import TransformersTarget
from graft.template import Template, load_template


def load(
    model: str | Path | PreTrainedModel = "smollm2-135m",
    *,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    threads: int | None = None,
    cpu_weights: Any = "auto",
    cuda_graphs: bool = True,
    drafter: DrafterKind | None = None,
    head: str | Path | None = None,
    draft_model: str | Path | PreTrainedModel | None = None,
    head_window: int | None = None,
    templates: str | Path | Sequence[str | Path] = (),
    matrix: str | Path | None = None,
    profile: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Engine:
    """Load a model and put an engine over it.

    Args:
        model: "smollm2-135m" (the default, converted on first use), a Transformers folder, a
            .gguf file, a hub id "org/name", or a loaded model object (with `tokenizer`).
        device: "auto" takes CUDA where there is one.
        dtype: "auto" computes in fp32 on a CPU and in the stored dtype elsewhere.
        threads: CPU threads of torch; None leaves torch's own choice.
        cpu_weights: "auto" packs fp16-exact weights for the fast CPU kernel; "fp32" packs none,
            "fp16" all.
        cuda_graphs: record forwards of target and EAGLE-3 head on a CUDA device and replay them:
            faster, for some memory and time at the first round of each shape.
        drafter: "eagle3", "model", "dflash" or "none"; None takes what `head` or `draft_model` is.
        head: checkpoint of an EAGLE-3 head or a DFlash drafter: a folder or a hub id. None takes
            the one that the package holds for the model, if any; "none" takes none.
        draft_model: a smaller model with the same tokenizer, to draft with.
        head_window: positions back that an EAGLE-3 head sees, for texts longer than those it was
            trained with.
        templates: a file of a template for all stages, or a list with one per stage; none takes
            the shipped one.
        matrix: file of a matrix to start from (`Engine.save_matrix` writes one); its k holds.
        profile: of graft calibrate, which fills the settings that are left open. None takes the
            one that was made for this model, head and kind of device, if there is one; "none" none.
        progress: called with a line of text when something takes long.
        **settings: fields of `EngineSettings`: policy, budget, thresholds, ...

    Raises:
        ValueError: for a model or a setting that is not supported.
    """
    try:
        engine_settings = EngineSettings(**settings)
    except TypeError as error:
        known = ", ".join(EngineSettings.__dataclass_fields__)
        raise ValueError(f"{', '.join(settings)}: supported engine settings are {known}") from error
    drafts = engine_settings.policy is None or engine_settings.policy in DRAFTING
    head = choose_head(model, head, drafter=drafter, draft_model=draft_model, drafts=drafts)
    check_choice(drafter, head, draft_model)
    _check_plan(engine_settings, model, device)
    warm = _has_matrix(matrix, engine_settings)
    files = [templates] if isinstance(templates, str | Path) else list(templates)
    shapes = [load_template(path) for path in files]
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        threads=threads,
        cpu_weights=cpu_weights,
        cuda_graphs=cuda_graphs,
        progress=progress,
    )
    made = load_drafter(
        loaded,
        kind=drafter,
        head=head,
        draft_model=draft_model,
        window=head_window,
        cpu_weights=cpu_weights,
        progress=progress,
    )
    start = None
    if matrix is not None and warm:
        start = load_matrix(matrix, loaded.fingerprint, device=loaded.model.device)
        if "k" in settings and settings["k"] != start.k:
            raise ValueError(
                f"k={settings['k']}, but the matrix {matrix} has {start.k} successors per token: "
                "leave out k (--k), or build another matrix"
            )
        engine_settings = replace(engine_settings, k=start.k)
    _check_ranks(files, shapes, engine_settings.k)
    given = (head or draft_model) if made is not None else None
    here = cache(partial(made_for, loaded, given if isinstance(given, str | Path) else None))
    # What it is made for takes reading the drafter's weights once more.
    found = find_profile(profile, here()) if any_profile(profile, loaded.name) else None
    return make_engine(
        loaded,
        made,
        engine_settings,
        shapes,
        start,
        matrix,
        profile=found,
        here=here,
        costs_of_one=None if found is None else found.costs_on(here()),
    )


def make_engine(
    loaded: LoadedModel,
    drafter: Drafter | None,
    settings: EngineSettings,
    templates: Sequence[Template] = (),
    matrix: AdjacencyMatrix | None = None,
    matrix_file: str | Path | None = None,
    *,
    profile: Profile | None = None,
    here: Callable[[], MadeFor] | None = None,
    costs_of_one: Costs | None = None,
) -> Engine:
    """An engine over a loaded model and drafter; a drafter is tested shortly.

    Raises:
        ValueError: for a model that cannot be shown a tree, and settings that do not fit.
    """
    layers = drafter.feature_layers if drafter is not None else ()
    try:
        target = TransformersTarget(
            loaded.model,
            feature_layers=layers,
            max_context=loaded.max_context,
            recorder=loaded.recorder,
        )
    except ValueError as error:
        raise ModelError(f"{loaded.name} is refused: {error}") from error
    engine = Engine(
        target,
        loaded.tokenizer,
        name=loaded.name,
        token_count=loaded.token_count,
        eos_token_ids=loaded.eos_token_ids,
        settings=settings,
        drafter=drafter,
        templates=templates,
        matrix=matrix,
        matrix_file=matrix_file,
        profile=profile,
        made_for=here,
        costs_of_one=costs_of_one,
    )
    if drafter is not None:
        self_test(engine)
    return engine


def device_kind(device: str | torch.device) -> str:
    """The type of a device that a user named; whether there is one is seen when it is needed."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(device).partition(":")[0]


def _check_plan(
    settings: EngineSettings, model: str | Path | PreTrainedModel, device: str | torch.device
) -> None:
    """Refuse numbers that do not fit together before a model is read."""
    kind = model.device.type if isinstance(model, PreTrainedModel) else device_kind(device)
    policy = settings.policy_with(drafter=True)
    settings.plan(policy, settings.budget_on(policy, kind))


def _has_matrix(path: str | Path | None, settings: EngineSettings) -> bool:
    """Whether there is a matrix to start from; refuses what does not fit the scope."""
    scope = settings.matrix_scope
    if path is None:
        if scope == "file":
            raise ValueError('matrix_scope="file" needs a file: give it as matrix (--matrix)')
        return False
    if scope == "request":
        raise ValueError(
            'matrix_scope="request" starts every request with an empty matrix, so a matrix file '
            "has no use: leave one of them out"
        )
    if scope == "file":
        return matrix_exists(path)  # the first of its users makes the file
    if not Path(path).exists():
        raise ValueError(
            f"matrix {path} does not exist: make it with graft matrix build, or give "
            'matrix_scope="file" to start an empty one and keep it there'
        )
    return True


def _check_ranks(files: Sequence[str | Path], templates: Sequence[Template], k: int) -> None:
    for path, template in zip(files, templates, strict=True):
        if template.ranks_used > k:
            raise ValueError(
                f"template {path} reads rank {template.ranks_used - 1}, but the matrix holds {k} "
                f"successors per token (ranks 0 to {k - 1}): give a larger k, or another template"
            )
