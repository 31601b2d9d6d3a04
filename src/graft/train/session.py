"""A training run from its settings to its files.

It joins the parts; what they do is theirs. Data, tokenizers, folders and numbers are checked
before the first step. A run keeps its checkpoints and its log in a work folder; the head appears
in its own folder at the end, complete, with a card and the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graft.drafters.eagle3.save import HeadFormat, check_place, save_head
from graft.machine import digest_of, name_of
from graft.models import LoadedModel, load_model
from graft.target import TransformersTarget
from graft.train.card import card
from graft.train.dataset import Dataset, read_dataset
from graft.train.evaluation import Trees, accuracy_of, tau_of
from graft.train.fast_dtype import fast_dtype
from graft.train.groups import make_groups, padding
from graft.train.log import TrainLog, facts_in
from graft.train.settings import TrainSettings
from graft.train.start import Start, head_of, running_copy, start_from, start_new
from graft.train.teacher import Teacher
from graft.train.trainer import StepRecord, Trainer
from graft.train.world import World

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainRun:
    """What to train, and where to.

    Attributes:
        data: data folders and .jsonl files.
        out: folder of the head. work: of checkpoints and log.
        settings: of the training.
        model: settings of `load_model`, but for dtype: what the models run in, where "auto" takes
            the faster one here of fp32 and bf16.
        base: a head to go on from; its shape holds. None begins a new one.
        feature_layers: layers of the target whose inputs are read; None takes EAGLE-3's.
        save_dtype: of the weights in the file. format: of the checkpoint.
        log_every, save_every, evaluate_every: optimiser steps; evaluate_every 0 is at the end
            alone.
        trees: how tau is measured.
        teacher_memory: bytes for what the target said of groups, kept from one epoch to the next.
    """

    data: Sequence[Path]
    out: Path
    work: Path
    settings: TrainSettings = field(default_factory=TrainSettings)
    model: dict[str, Any] = field(default_factory=dict)
    dtype: str = "auto"
    base: str | None = None
    feature_layers: tuple[int, ...] | None = None
    save_dtype: torch.dtype = torch.float16
    format: HeadFormat = "specforge"
    log_every: int = 10
    save_every: int = 200
    evaluate_every: int = 0
    trees: Trees = field(default_factory=Trees)
    teacher_memory: int = 0


@dataclass(frozen=True)
class Progress:
    """What a run says after a step; evaluation: what was measured then, if anything was."""

    record: StepRecord
    total: int
    evaluation: dict[str, Any] | None = None


class Session:
    """A run that is ready to begin, or to go on.

    Args:
        say: gets a sentence before what takes long.

    Attributes:
        findings: sentences on the data and on what was made of it.

    Raises:
        ValueError: for anything that does not fit.
    """

    def __init__(self, run: TrainRun, say: Say, world: World | None = None) -> None:
        self.world = world or World()
        check_place(run.out)
        self.loaded = _load(run, self.world, say)
        run = replace(run, settings=run.settings.within(self.loaded.max_context))
        self.run, settings = run, run.settings
        self.data = _data(run, self.loaded)
        start = _start(run, self.loaded, self.data)
        self.target = TransformersTarget(
            self.loaded.model,
            feature_layers=start.config.feature_layers,
            max_context=self.loaded.max_context,
        )
        ids = start.target_ids.to(self.target.device)
        self.head = running_copy(start, self.loaded.model)
        self.teacher = Teacher(self.target, ids, self.loaded.token_count, run.teacher_memory)
        self._embed: Any = self.head.embed_tokens or self.loaded.model.get_input_embeddings()
        groups = make_groups(self.data.train, settings.group_tokens)
        covered = start.coverage(self.data.train)
        self.findings = [
            self.data.told(),
            f"the draft vocabulary of {len(ids):,} tokens covers "
            f"{covered:.2%} of the answers' tokens",
            f"{len(groups):,} groups of answers, {padding(groups):.1%} of their tokens are padding",
        ]
        self.facts = _facts(run, self.loaded, self.data, start, covered)
        self.trainer = Trainer(
            self.head,
            start.weights,
            self.teacher,
            self._embed,
            groups,
            settings,
            facts=self.facts,
            folder=run.work,
            world=self.world,
        )
        self.log = TrainLog(_log_of(run), self.facts, self.trainer.done, writes=self.world.leads)

    def steps(self) -> Iterator[Progress]:
        """Train; a checkpoint is there whenever this is left, however it is left."""
        trainer, run = self.trainer, self.run
        saved = trainer.done
        try:
            for record in trainer.run():
                last = record.step == trainer.total
                if record.step % run.log_every == 0 or last:
                    self.log.add(asdict(record))
                if record.step % run.save_every == 0 or last:
                    trainer.save()
                    saved = record.step
                due = run.evaluate_every and record.step % run.evaluate_every == 0 and not last
                yield Progress(record, trainer.total, self.evaluate() if due else None)
        finally:
            if trainer.done > saved:
                trainer.save()

    def evaluate(self) -> dict[str, Any]:
        """Accuracy and tau on what is held out; also a line of the log."""
        found: dict[str, Any] = {"step": self.trainer.done, "tokens": self.trainer.tokens}
        if self.data.held_out and self.world.leads:
            self.head.eval()
            found |= self._accuracy() | self._tau()
            self.head.train()
        self.log.add(found)
        self.world.wait()
        return found

    def export(self) -> Path:
        """Write the head, once training has ended.

        Raises:
            ValueError: for weights that the dtype of the file cannot hold, or a folder that cannot
                be written.
        """
        measured = self.evaluate()
        if not self.world.leads:
            return self.run.out
        kind = self.run.save_dtype
        weights = {name: weight.detach().cpu() for name, weight in self.trainer.weights.items()}
        head = head_of(Start(self.head.config, weights, self.head.target_ids.cpu()), kind)
        if bad := [name for name, w in head.named_parameters() if not torch.isfinite(w).all()]:
            raise ValueError(
                f"{bad[0]} has values that {kind} cannot hold: training has diverged (lower "
                "--rate), or save in another dtype"
            )
        return save_head(
            self.run.out,
            head,
            target_name=self.loaded.name,
            fingerprint=self.loaded.fingerprint,
            format=self.run.format,
            files={"README.md": card(self.facts, measured), "training.jsonl": self.log.text()},
        )

    def _accuracy(self) -> dict[str, Any]:
        settings = self.run.settings
        found = accuracy_of(
            self.head,
            self.teacher,
            self._embed,
            self.data.held_out,
            steps=settings.test_steps,
            group_tokens=settings.group_tokens,
        )
        return {"held_out_accuracy": [round(share, 4) for share in found]}

    def _tau(self) -> dict[str, Any]:
        loaded, trees = self.loaded, self.run.trees
        found = tau_of(
            self.head,
            self.target,
            loaded.tokenizer,
            self.data.held_out,
            trees,
            token_count=loaded.token_count,
            eos_token_ids=loaded.eos_token_ids,
        )
        by_length = {name: round(tau, 4) for name, tau in found.by_length.items()}
        return {
            "held_out_tau": round(found.mean, 4),
            "tau_by_prompt_tokens": by_length,
            "looping": found.looping,
            "trees": asdict(trees),
        }


def _load(run: TrainRun, world: World, say: Say) -> LoadedModel:
    settings = dict(run.model)
    if world.size > 1 and torch.cuda.is_available():
        settings["device"] = f"cuda:{torch.cuda.current_device()}"
    wanted = settings.get("device", "auto")
    cuda = torch.cuda.is_available() if wanted == "auto" else str(wanted).startswith("cuda")
    dtype: Any = run.dtype
    if dtype == "auto":
        # A run goes on in the dtype that it began in, whatever is faster at this moment.
        place = torch.device("cuda" if cuda else "cpu")
        dtype = facts_in(_log_of(run)).get("dtype") or fast_dtype(place)
    # fp16 kernels are for few rows; bf16 ones lose nothing at many.
    weights: Any = "auto" if dtype in (torch.bfloat16, "bf16", "bfloat16") else "fp32"
    loaded = load_model(**settings, dtype=dtype, cpu_weights=weights, progress=say)
    loaded.model.requires_grad_(False)
    return loaded


def _log_of(run: TrainRun) -> Path:
    return run.work / "log.jsonl"


def _data(run: TrainRun, loaded: LoadedModel) -> Dataset:
    return read_dataset(
        run.data, run.settings, fingerprint=loaded.fingerprint, token_count=loaded.token_count
    )


def _start(run: TrainRun, loaded: LoadedModel, data: Dataset) -> Start:
    if run.base is not None:
        return start_from(run.base, loaded, data.train, run.settings)
    return start_new(loaded, data.train, run.settings, run.feature_layers)


def _facts(
    run: TrainRun, loaded: LoadedModel, data: Dataset, start: Start, covered: float
) -> dict[str, Any]:
    """What makes the run this run and no other."""
    return {
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "base": None if run.base is None else _name(run.base),
        "feature_layers": list(start.config.feature_layers),
        "answers": len(data.train),
        "answer_tokens": data.tokens,
        "data": data.digest,
        "looping_left_out": data.looping,
        "coverage": round(covered, 4),
        "parameters": sum(weight.numel() for weight in start.weights.values()),
        **asdict(run.settings),
    }


def _name(base: str) -> str:
    """A head's name, without the folders of this machine, and what tells it from others."""
    return f"{name_of(base)} ({str(digest_of(base))[:12]})"
