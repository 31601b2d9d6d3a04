"""A benchmark from its settings to a runner that is ready, in a folder of its own.

It joins the parts; what they do is theirs. Mistakes in suites, methods, numbers and folders are
found before a model is loaded, items that do not fit the model before anything is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graft.bench import llama
from graft.bench.conversation import check_items, text_length
from graft.bench.environment import environment
from graft.bench.folder import held
from graft.bench.item import Item, prompts_hash
from graft.bench.methods import (
    OTHER_WEIGHTS,
    OUTSIDE,
    Case,
    Method,
    cases_of,
    parse_method,
    split_method,
)
from graft.bench.others import Others, gguf_of
from graft.bench.results_writer import ResultsWriter
from graft.bench.runner import MatrixState, Plan, Runner
from graft.bench.selection import select_items
from graft.bench.suite import builtin_suite, read_suite
from graft.drafters.base import Drafter
from graft.drafters.loading import check_window, kind_of, load_drafter
from graft.engine import Engine
from graft.loader import device_kind, make_engine
from graft.machine import made_for
from graft.models import LoadedModel, load_model
from graft.profile import Profile, load_profile
from graft.sampling_params import SamplingParams
from graft.settings import DRAFTING, EngineSettings
from graft.shipped_heads import NO_HEAD, choose_head
from graft.smollm2 import ALIAS

# Settings of the selection that need a tokenizer, and the one that comes after them.
_LATE = ("max_prompt_tokens", "min_prompt_tokens", "limit")


@dataclass(frozen=True)
class BenchSettings:
    """What to run.

    Attributes:
        suites: files and folders; none takes the built-in prompts.
        selection: settings of `graft.bench.selection.select_items`.
        methods: by name (`graft.bench.methods`).
        heads, draft_model: checkpoints of the drafters; the first one given is the default. Without
            any, methods that draft take the head that comes with the model; "none" takes none.
        model: settings of `load_model`.
        engine: settings of `EngineSettings` that all methods share.
        budgets: nodes per tree; None is each method's own: the profile's, or what holds where
            nothing is said.
        profile: of graft calibrate. Its settings serve the methods whose budget it says, its costs
            all. None takes none.
        head_window: positions back that an EAGLE-3 head sees; None leaves what it was trained with.
        gguf: what llama.cpp reads; None takes the file that the model itself is made of.
    """

    suites: Sequence[Path] = ()
    selection: Mapping[str, Any] = field(default_factory=dict)
    methods: Sequence[str] = ("plain", "retrieval")
    budgets: Sequence[int | None] = (4,)
    temperatures: Sequence[float] = (0.0,)
    batches: Sequence[int] = (1,)
    max_new_tokens: int = 128
    seed: int = 0
    matrix: MatrixState = "warm"
    heads: Sequence[str] = ()
    draft_model: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    profile: str | None = None
    gguf: str | None = None
    head_window: int | None = None

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("no method is given: name one or more, as in plain,retrieval")
        if empty := [n for n in ("budgets", "temperatures", "batches") if not getattr(self, n)]:
            raise ValueError(f"{empty[0]} is empty: give one number or more")
        for name in ("budgets", "batches"):
            if bad := [n for n in getattr(self, name) if n is not None and n < 1]:
                raise ValueError(f"{name} holds {bad[0]}: numbers from 1 on are supported")
        for name in ("methods", "budgets", "temperatures", "batches"):
            given = getattr(self, name)
            if twice := [one for i, one in enumerate(given) if one in given[:i]]:
                what = "own" if twice[0] is None else twice[0]
                raise ValueError(f"{name} holds {what} twice: name it once")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature, seed=self.seed)
        if self.max_new_tokens < 2:
            raise ValueError(
                f"max_new_tokens={self.max_new_tokens}: 2 or more are supported, since speed is "
                "that of the tokens after the first"
            )
        check_window(self.head_window)
        outside = [name for name in self.methods if name in OUTSIDE]
        if outside and 1 not in self.batches:
            raise ValueError(f"{outside[0]} answers one prompt at a time: let 1 be among batches")
        exact = [name for name in outside if name not in OTHER_WEIGHTS]
        if exact and self.model.get("cpu_weights") == "fp16":
            raise ValueError(
                f"{exact[0]} runs the weights as they are, cpu_weights=fp16 rounds them: leave "
                "one of them out"
            )

    @property
    def late_selection(self) -> dict[str, Any]:
        """What of the selection is applied once the model is there."""
        return {k: v for k, v in self.selection.items() if k in _LATE}

    def cases(
        self, drafters: Sequence[str], device_type: str, profile: Profile | None = None
    ) -> list[Case]:
        """All combinations; methods of others answer one prompt at a time."""

        def own(method: Method) -> int:
            named = EngineSettings(**self.engine).having(policy=method.policy or "lookup")
            filled = named if profile is None else profile.fill(named)
            return filled.budget_on(filled.policy_with(drafter=bool(drafters)), device_type)

        methods = [parse_method(text, drafters) for text in self.methods]
        cases = cases_of(methods, self.budgets, self.temperatures, self.batches, own)
        return [c for c in cases if c.method.policy is not None or c.batch == 1]

    def engine_settings(self, cases: Sequence[Case] = ()) -> EngineSettings:
        """Of all engines.

        Raises:
            ValueError: for settings that do not fit together in one of these cases.
        """
        scope = "request" if self.matrix == "cold" else "process"
        shared = EngineSettings(
            **{**self.engine, "matrix_scope": scope}, max_batch=max(self.batches)
        )
        for case in cases:
            if case.method.policy is not None:
                shared.having(policy=case.method.policy, budget=case.budget or None)
        return shared


def read_items(settings: BenchSettings) -> list[Item]:
    """The suite, checked, before lengths are known."""
    early = {k: v for k, v in settings.selection.items() if k not in _LATE}
    select_items(
        [], **settings.late_selection, count=len
    )  # their ranges are known without the model
    if settings.suites:
        return read_suite(settings.suites, **early)
    return select_items(builtin_suite(), **early)


@dataclass
class Opened:
    """A benchmark that is ready to run."""

    runner: Runner
    loaded: LoadedModel


@contextmanager
def opened(
    settings: BenchSettings,
    folder: Path,
    *,
    command: Sequence[str] = (),
    resume: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Opened]:
    """Load everything and open the results of a run; nobody else can until it is closed.

    Raises:
        ValueError: for anything that is wrong with settings, suites, models or files.
    """
    settings = with_shipped_head(settings)
    items = read_items(settings)
    profile = None if settings.profile is None else load_profile(settings.profile)
    gguf = gguf_of(settings.methods, settings.model.get("model", ALIAS), settings.gguf)
    kinds = _kinds_named(settings)
    settings.engine_settings(
        settings.cases(kinds, device_kind(settings.model.get("device", "auto")))
    )
    with held(folder):
        loaded = load_model(**settings.model, progress=progress)
        items = _fitting(settings, items, loaded)
        engines, checkpoints = _engines(settings, loaded, progress)
        kinds = [kind for kind in engines if kind is not None]
        cases = settings.cases(kinds, loaded.model.device.type, profile)
        told = environment(
            loaded,
            checkpoints,
            prompts_hash=prompts_hash(items),
            settings=_as_plain(settings, cases, profile, gguf),
            command=command,
        )
        plan = Plan(items, cases, settings.max_new_tokens, settings.seed, settings.matrix)

        outside = Others(settings.model, gguf, loaded, progress)
        with ResultsWriter(folder / "results.jsonl", told, resume=resume) as writer:
            yield Opened(Runner(plan, engines, outside, writer, folder), loaded)


def with_shipped_head(settings: BenchSettings) -> BenchSettings:
    """With the head that comes with the model, where a method drafts and no drafter is named."""
    if settings.heads:
        return replace(settings, heads=[head for head in settings.heads if head != NO_HEAD])
    policies = [split_method(name)[1] for name in settings.methods]
    head = choose_head(
        settings.model.get("model"),
        None,
        drafter=None,
        draft_model=settings.draft_model,
        drafts=any(policy in DRAFTING for policy in policies),
    )
    return settings if head is None else replace(settings, heads=[str(head)])


def _kinds_named(settings: BenchSettings) -> list[str]:
    """Kinds of the drafters; a head's own files say which it is."""
    kinds: list[str] = [kind_of(head) for head in settings.heads]
    if settings.draft_model is not None:
        kinds.append("model")
    if settings.head_window is not None and "eagle3" not in kinds:
        raise ValueError(
            f"head_window={settings.head_window} limits an EAGLE-3 head, and none is loaded: leave "
            "it out"
        )
    if twice := [kind for i, kind in enumerate(kinds) if kind in kinds[:i]]:
        raise ValueError(f"two drafters of the kind {twice[0]} are given: a run takes one of each")
    return kinds


def _fitting(settings: BenchSettings, items: Sequence[Item], loaded: LoadedModel) -> list[Item]:
    """The items that are chosen by length, all of which the model can answer."""
    chosen = select_items(
        items,
        **settings.late_selection,
        count=lambda text: text_length(loaded.tokenizer, text),
    )
    check_items(
        chosen,
        loaded.tokenizer,
        room=loaded.max_context,
        max_new_tokens=settings.max_new_tokens,
        name=loaded.name,
    )
    return chosen


def _engines(
    settings: BenchSettings, loaded: LoadedModel, progress: Callable[[str], None] | None
) -> tuple[dict[str | None, Engine], dict[str, str]]:
    """An engine per drafter and one without, over the same model; and the checkpoints."""
    weights = settings.model.get("cpu_weights", "auto")
    asked: list[dict[str, Any]] = [{"head": head} for head in settings.heads]
    if settings.draft_model is not None:
        asked.append({"draft_model": settings.draft_model})
    engines: dict[str | None, Engine] = {}
    checkpoints: dict[str, str] = {}
    for one in asked:
        eagle = "head" in one and kind_of(one["head"]) == "eagle3"
        window = settings.head_window if eagle else None
        drafter = load_drafter(loaded, **one, window=window, cpu_weights=weights, progress=progress)
        assert drafter is not None
        checkpoints[drafter.name] = str(*one.values())
        engines[drafter.name] = _engine(settings, loaded, drafter, checkpoints[drafter.name])
    engines[None] = _engine(settings, loaded, None, None)
    return engines, checkpoints


def _engine(
    settings: BenchSettings, loaded: LoadedModel, drafter: Drafter | None, checkpoint: str | None
) -> Engine:
    shared = settings.engine_settings()
    if settings.profile is None:
        return make_engine(loaded, drafter, shared)
    here = made_for(loaded, checkpoint)
    profile = load_profile(settings.profile)
    if drafter is None:  # for which one it was made does not matter then
        here = here._replace(head=profile.made_for.head)
        profile = replace(profile, policy="plain")
    profile.require(here, settings.profile)
    costs = profile.costs_on(here)
    return make_engine(loaded, drafter, shared, profile=profile, costs_of_one=costs)


def _as_plain(
    settings: BenchSettings, cases: Sequence[Case], profile: Profile | None, gguf: Path | None
) -> dict[str, Any]:
    found: dict[str, Any] = {} if profile is None else {"profile": dict(profile.settings)}
    if settings.head_window is not None:
        found["head_window"] = settings.head_window
    if gguf is not None:
        found[llama.METHOD] = llama.told(gguf)
    return {
        **found,
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
        "matrix": settings.matrix,
        "engine": {k: v for k, v in settings.engine.items() if v is not None},
        "cases": [case.name for case in cases],
    }
