"""The data of a run: answers from folders and files, checked, filtered, and split.

It knows files and token ids; not models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graft.train.answers import Answer
from graft.train.data_folder import read_answers, read_file, read_manifest
from graft.train.settings import TrainSettings

HELD_SHARE = 5  # of as many prompts one is held out at most


@dataclass(frozen=True)
class Dataset:
    """What to train on.

    Attributes:
        train, held_out: answers; no prompt is in both.
        looping, short, long: answers left out because they loop, have nothing to learn, or have a
            prompt that leaves no room below the longest length; cut: answers that were shortened.
        digest: of what is trained on.
    """

    train: list[Answer]
    held_out: list[Answer]
    looping: int
    short: int
    long: int
    cut: int
    digest: str

    @property
    def tokens(self) -> int:
        """Of the answers that are trained on."""
        return sum(len(a.answer_ids) for a in self.train)

    def told(self) -> str:
        """A sentence on what there is and what was left out."""
        return (
            f"{len(self.train):,} answers with {self.tokens:,} tokens to train on and "
            f"{len(self.held_out):,} kept aside; left out: {self.looping:,} that loop "
            f"({self.looping_share:.1%}), {self.short:,} with nothing to learn, {self.long:,} with "
            f"too long a prompt; {self.cut:,} cut"
        )

    @property
    def looping_share(self) -> float:
        """Of all answers that were read."""
        kept = len(self.train) + len(self.held_out) + self.short + self.long
        return self.looping / max(1, self.looping + kept)


def read_dataset(
    places: Sequence[Path], settings: TrainSettings, *, fingerprint: str, token_count: int
) -> Dataset:
    """Read data folders and .jsonl files.

    Args:
        fingerprint, token_count: of the target's tokenizer.

    Raises:
        ValueError: for data that cannot be read, is for another tokenizer, or leaves nothing.
    """
    answers = list(_read(places, fingerprint, token_count))
    kept, counts = [], {"looping": 0, "short": 0, "long": 0, "cut": 0}
    for answer in answers:
        fate, fitting = _fit(answer, settings)
        if fate is not None:
            counts[fate] += 1
        if fitting is not None:
            kept.append(fitting)
    names = sorted({(a.task, a.id) for a in kept}, key=lambda name: _rank(name, settings.seed))
    aside = set(names[: min(settings.held_out, len(names) // HELD_SHARE)])
    train = [a for a in kept if (a.task, a.id) not in aside]
    if not train:
        raise ValueError(
            f"nothing is left to train on: {len(answers)} answers were read, {counts['looping']} "
            f"loop, {counts['short']} have fewer than 2 tokens, and {counts['long']} have a prompt "
            f"beyond max_length={settings.max_length}"
        )
    held_out = [a for a in kept if (a.task, a.id) in aside]
    return Dataset(train, held_out, **counts, digest=_digest(train))


def _read(places: Sequence[Path], fingerprint: str, token_count: int) -> Iterator[Answer]:
    for place in places:
        for answer in _source(place, fingerprint):
            highest = max(max(answer.prompt_ids), max(answer.answer_ids))
            if highest >= token_count:
                raise ValueError(
                    f"{place}: the answer to {answer.id!r} of {answer.task} holds token {highest}, "
                    f"but this model has ids 0 to {token_count - 1}: it is for another tokenizer"
                )
            yield answer


def _source(place: Path, fingerprint: str) -> Iterable[Answer]:
    if place.is_dir():
        manifest = read_manifest(place)
        if manifest.fingerprint != fingerprint:
            raise ValueError(
                f"{place} holds answers of {manifest.model}, whose tokenizer (fingerprint "
                f"{manifest.fingerprint}) is not this model's ({fingerprint}): make data with "
                "this model"
            )
        return read_answers(place)
    return read_file(place)


def _fit(answer: Answer, settings: TrainSettings) -> tuple[str | None, Answer | None]:
    """What becomes of an answer, and what is left of it."""
    if answer.repeated > settings.looping:
        return "looping", None
    room = settings.length - len(answer.prompt_ids)
    if room < 2:
        return "long", None
    if len(answer.answer_ids) < 2:
        return "short", None
    if len(answer.answer_ids) > room:
        return "cut", replace(answer, answer_ids=answer.answer_ids[:room])
    return None, answer


def _rank(name: tuple[str, str], seed: int) -> bytes:
    return hashlib.sha256(repr((seed, name)).encode()).digest()


def _digest(answers: Sequence[Answer]) -> str:
    total = hashlib.sha256()
    for answer in answers:
        total.update(answer.line().encode())
    return total.hexdigest()[:16]
