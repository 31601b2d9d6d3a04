"""The engine: prompts in, tokens out, with the same tokens as plain decoding.

`Engine` turns prompts and settings into requests, keeps the matrix between them, and runs rounds
(`graft.decoder`) until all have ended. It does not know how models are loaded or how a round works.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from graft.chosen import Chosen, choose
from graft.cost_measure import BATCH, measure_costs
from graft.costs import Costs
from graft.decoder import BatchDecoder, Observer
from graft.drafters.base import Drafter
from graft.fingerprint import tokenizer_fingerprint
from graft.footprint import Part
from graft.grafter import Grafter
from graft.matrix import AdjacencyMatrix
from graft.matrix_file import save_matrix
from graft.memory import Memory
from graft.metrics import CollapseAlarm
from graft.profile import MadeFor, Profile
from graft.prompts import Message, Prompt, as_prompts, encode
from graft.pruning import DraftPlan
from graft.request import Request, Result, StreamToken
from graft.sampling_params import SamplingParams
from graft.scheduler import Scheduler
from graft.settings import EngineSettings, Policy
from graft.stream import TokenStream
from graft.target import Target
from graft.template import Template, default_template

BUSY = (
    "this engine is in the middle of another generation: finish or close that stream first, or "
    "load a second engine"
)
ROOM = 1024  # tokens of an answer that room is made for before it is needed


class Engine:
    """Decodes with one target.

    Args:
        target: the model, seen as a verifier.
        tokenizer: the target's.
        name: how reports call the model.
        token_count: ids the tokenizer knows; padding of the logits beyond them is never chosen.
        eos_token_ids: ids that end an answer.
        settings: defaults, which single calls may change.
        drafter: who drafts; without one, trees are retrieved alone.
        templates: what to retrieve: one for all stages or one per stage; if None, what the matrix
            holds of the shipped one.
        matrix: to start from; if None, an empty one.
        matrix_file: where `close` keeps the matrix under matrix_scope "file".
        costs: of rounds; if None, they are measured when a policy first needs them.
        costs_of_one: known for one sequence at a time; those of batches are measured.
        profile: what calibration found; it fills what the settings leave open.
        made_for: says what a profile made here would be for.

    Raises:
        ValueError: for settings that do not fit the drafter or the templates.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        token_count: int,
        eos_token_ids: Sequence[int],
        settings: EngineSettings | None = None,
        drafter: Drafter | None = None,
        templates: Sequence[Template] | None = None,
        matrix: AdjacencyMatrix | None = None,
        matrix_file: str | Path | None = None,
        costs: Costs | None = None,
        costs_of_one: Costs | None = None,
        profile: Profile | None = None,
        made_for: Callable[[], MadeFor] | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.name = name
        self.token_count = token_count
        self.eos_token_ids = tuple(eos_token_ids)
        self.settings = settings or EngineSettings()
        self.drafter = drafter
        self._matrix_file = matrix_file
        matrix = matrix or AdjacencyMatrix(token_count, self.settings.k, target.device)
        self.memory = Memory(matrix)
        self._templated = bool(templates)
        self.templates = tuple(templates or [default_template().within(self.matrix.k)])
        self.profile, self.made_for = profile, made_for
        self._given_costs, self._costs_of_one = costs, costs_of_one
        self._costs: dict[tuple[Policy, DraftPlan, bool, int], Costs] = {}
        self._alarm = CollapseAlarm()
        self._cached: list[int] = []  # tokens behind the rows of slot 0, for a next turn
        self._drafted = False  # whether the drafter knows them too
        self._opened: int = 0  # what the target counted when they were written
        self._busy = False
        self._chosen()

    @property
    def matrix(self) -> AdjacencyMatrix:
        """Successors of single tokens, as learnt so far."""
        return self.memory.matrix

    @property
    def policy(self) -> Policy:
        """The policy that holds where a call names none."""
        return self._chosen().policy

    @property
    def budget(self) -> int:
        """The budget of that policy on this device."""
        chosen = self._chosen()
        return chosen.settings.budget_on(chosen.policy, self.target.device.type)

    def costs(self, budget: int | None = None, *, fine: bool = False) -> Costs:
        """What rounds of graft+ cost here; measured the first time, which takes a second or so.

        Args:
            budget: most nodes of a tree; None takes the engine's.
            fine: measure small trees of every size; takes some seconds.

        Raises:
            RuntimeError: in the middle of a generation.
        """
        chosen = self._chosen("graft+", budget)
        with self.borrow_target():
            costs = self._costs_of(chosen, fine=fine)
        assert costs is not None, "graft+ weighs"
        return costs

    @overload
    def generate(
        self,
        prompts: str | Sequence[Message] | Sequence[int],
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> list[Result]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        policy: str | None = None,
        budget: int | None = None,
        raw: bool = False,
        **options: Any,
    ) -> Result | list[Result]:
        """Answer one prompt (returns a `Result`) or a list of them (returns a list).

        Args:
            prompts: a text, chat messages, token ids, or a list of these.
            sampling: settings of the draw and the end; or give them by name as `options`.
            policy, budget: override the engine's settings for this call.
            raw: continue a text as it is, without the chat template.

        Raises:
            ValueError: for prompts and settings that are not supported.
        """
        _, single = as_prompts(prompts)
        stream = self.stream(prompts, sampling, policy=policy, budget=budget, raw=raw, **options)
        for _ in stream:
            pass
        return stream.results[0] if single else stream.results

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        policy: str | None = None,
        budget: int | None = None,
        raw: bool = False,
        reuse_prefix: bool = False,
        watch: Observer | None = None,
        **options: Any,
    ) -> TokenStream:
        """As `generate`, token by token as they are committed.

        Args:
            reuse_prefix: keep what the last single request left in the cache where this prompt
                begins with the same tokens (a chat's next turn).
            watch: is shown every round (`RoundView`).
        """
        params = _params(sampling, options)
        given, single = as_prompts(prompts)
        requests = []
        for index, prompt in enumerate(given):
            try:
                ids = encode(prompt, self.tokenizer, raw=raw)
                requests.append(self.request(index, ids, params))
            except ValueError as error:
                raise error if single else ValueError(f"prompt {index}: {error}") from error
        return self.run(requests, policy=policy, budget=budget, reuse=reuse_prefix, watch=watch)

    def run(
        self,
        requests: Sequence[Request],
        *,
        policy: str | None = None,
        budget: int | None = None,
        reuse: bool = False,
        watch: Observer | None = None,
    ) -> TokenStream:
        """As `stream`, for requests that are made already: each with its own settings."""
        chosen = self._chosen(policy, budget)
        made = list(requests)
        return TokenStream(made, self._run(made, chosen, reuse, watch))

    @contextmanager
    def schedule(
        self, *, policy: str | None = None, budget: int | None = None, watch: Observer | None = None
    ) -> Iterator[Scheduler]:
        """Requests that come and go while others decode: add, step, cancel. Up to `max_batch` of
        them decode together. The engine is the scheduler's own until the `with` block ends.

        Args:
            policy, budget, watch: as in `stream`.
        """
        chosen = self._chosen(policy, budget)
        slots = chosen.settings.max_batch
        with self._occupied():
            self._cached = []
            yield self._scheduler(chosen, self._costs_of(chosen, slots), slots, ROOM)

    def continue_ids(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        forced: Sequence[int] = (),
        row: int = 0,
        policy: str | None = None,
        budget: int | None = None,
    ) -> Result:
        """Answer one prompt of token ids whose first output tokens are fixed.

        The result holds what follows them. Positions count from the prompt on, so the draws are
        those of a whole answer that began with `forced`.

        Args:
            forced: the first output tokens; fewer than the answer may have.
            row: number that keys the noise; in a call for several prompts it is the prompt's
                index, so this repeats one of them alone.

        Raises:
            ValueError: for prompts and settings that are not supported.
        """
        request = self.request(0, list(prompt), params, list(forced), row)
        if len(forced) >= request.limit:
            raise ValueError(
                f"{len(forced)} forced tokens leave nothing to draw: this answer has at most "
                f"{request.limit} tokens; raise max_new_tokens or shorten the prompt"
            )
        for _ in self.run([request], policy=policy, budget=budget):
            pass
        return request.result()

    def save_matrix(self, path: str | Path) -> None:
        """Write what the matrix holds to a file, for a warm start of a later engine.

        Raises:
            ValueError: for a path that cannot be written or holds something else.
        """
        fingerprint = tokenizer_fingerprint(self.tokenizer, self.token_count)
        save_matrix(path, self.matrix, fingerprint, model=self.name)

    def footprint(self) -> list[Part]:
        """Memory held besides what plain decoding of the model would hold, part by part: what was
        made so far, and the rows and logits of a sequence's largest tree."""
        drafter = [] if self.drafter is None else self.drafter.footprint()
        tree = Part("a tree", self._chosen().plan.budget * self.target.row_bytes)
        return [*self.memory.footprint(), *drafter, tree]

    @contextmanager
    def borrow_target(self) -> Iterator[Target]:
        """The target, for other work than generations; the rows in its cache are forgotten.

        Raises:
            RuntimeError: in the middle of a generation.
        """
        if self._busy:
            raise RuntimeError(BUSY)
        self._busy, self._cached = True, []
        try:
            yield self.target
        finally:
            self._busy = False

    def forget(self) -> None:
        """Forget the cache and the rounds that the alarm has seen; the matrix stays.

        Raises:
            RuntimeError: in the middle of a generation.
        """
        with self.borrow_target():
            self._drafted, self._alarm = False, CollapseAlarm()

    def close(self) -> None:
        """Under matrix_scope "file", keep in the file what was learnt. A `with` block does so."""
        if self.settings.matrix_scope == "file" and self._matrix_file is not None:
            self.save_matrix(self._matrix_file)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @torch.inference_mode()
    def logits_of(self, ids: Sequence[int], last: int = 1) -> Tensor:
        """Logits [last, V] after each of the last tokens of a text, in one plain prefill."""
        kept: list[Tensor] = []
        with self.borrow_target() as target:
            target.open(1, len(ids))
            tokens = torch.tensor(list(ids), device=target.device)
            before, behind = tokens[: len(ids) - last], tokens[len(ids) - last :]
            if len(before):
                target.prefill(0, before)
            target.prefill(0, behind, lambda _, logits: kept.append(logits))
        return torch.cat(kept)

    def request(
        self,
        index: int,
        prompt: list[int],
        params: SamplingParams,
        forced: list[int] | None = None,
        row: int | None = None,
    ) -> Request:
        """A request for `run`.

        Args:
            index: its number in the call.
            prompt: token ids.
            forced: first output tokens that are fixed.
            row: number that keys the noise; None takes the index.

        Raises:
            ValueError: for ids that there are not, and a prompt without room for an answer.
        """
        room = self._room(prompt)
        known = [*prompt, *(forced or ())]
        if bad := [t for t in known if not 0 <= t < self.token_count]:
            raise ValueError(f"token id {bad[0]}: {self.name} has ids 0 to {self.token_count - 1}")
        ends = () if params.ignore_eos else self.eos_token_ids
        return Request(
            index=index,
            prompt=prompt,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            row=index if row is None else row,
            stop_ids=frozenset({*ends, *params.stop_token_ids}),
            limit=min(params.max_new_tokens, room),
            decode=self._decode,
            forced=forced or [],
        )

    def _room(self, prompt: Sequence[int]) -> int:
        context = self.target.max_context
        if context is None:
            return 1 << 40
        if len(prompt) >= context:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, but {self.name} holds {context} tokens of "
                "prompt and answer together: shorten the prompt"
            )
        return context - len(prompt)

    def _run(
        self,
        requests: list[Request],
        chosen: Chosen,
        reuse: bool,
        watch: Observer | None = None,
    ) -> Generator[StreamToken]:
        with self._occupied():
            slots = min(len(requests), chosen.settings.max_batch)
            costs = self._costs_of(chosen, slots)
            # Another engine may have used the same target since.
            valid = reuse and len(requests) == 1 and self.target.openings == self._opened
            cached, self._cached = (self._cached if valid else []), []
            longest = max(len(r.context) + min(r.limit, ROOM) for r in requests)
            keep = bool(cached)
            scheduler = self._scheduler(chosen, costs, slots, longest, keep, watch)
            try:
                for request in requests:
                    scheduler.put(request, cached)
                while scheduler.busy:
                    yield from scheduler.step()
            finally:
                # What an early end has committed serves a next turn too.
                if len(requests) == 1 and requests[0].drawn:
                    self._cached = requests[0].context[: self.target.length(0)]
                    self._opened = self.target.openings

    @contextmanager
    def _occupied(self) -> Iterator[None]:
        """The engine is one generation's own."""
        if self._busy:
            raise RuntimeError(BUSY)
        self._busy = True
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self._drafted = False  # broken off in the middle of a round, the drafter's state is too
            raise
        finally:
            self._busy = False

    def _chosen(self, policy: str | None = None, budget: int | None = None) -> Chosen:
        """What a call decodes with."""
        return choose(
            self.settings.having(policy=policy, budget=budget),
            profile=self.profile,
            templates=self.templates,
            own_templates=self._templated,
            ranks=self.matrix.k,
            drafter=self.drafter,
            device_type=self.target.device.type,
        )

    def _scheduler(
        self,
        chosen: Chosen,
        costs: Costs | None,
        slots: int,
        longest: int,
        keep: bool = False,
        watch: Observer | None = None,
    ) -> Scheduler:
        """A scheduler over fresh slots, or over what they hold.

        Args:
            slots: requests that decode together.
            longest: tokens of a sequence to make room for at first; more is made when needed.
            keep: the slots still hold an earlier turn.
        """
        room, drafter = longest + chosen.plan.budget + 1, chosen.drafter
        if not keep:
            self.target.open(slots, room)
        if not (keep and self._drafted):
            drafter.open(slots, room)
        self._drafted = drafter is self.drafter
        parts = chosen.parts(self.memory, slots, costs)
        decoder = BatchDecoder(
            self.target,
            drafter,
            parts.grafter,
            spending=parts.spending,
            token_count=self.token_count,
            watch=watch,
        )
        return Scheduler(decoder, slots, self._alarm, self._make_request)

    def _make_request(
        self,
        index: int,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        raw: bool = False,
        **options: Any,
    ) -> Request:
        """A request that draws as a call for its prompt alone does."""
        params = _params(sampling, options)
        return self.request(index, encode(prompt, self.tokenizer, raw=raw), params, row=0)

    def _costs_of(self, chosen: Chosen, slots: int = 1, *, fine: bool = False) -> Costs | None:
        """What rounds cost, of so many sequences, where they need to know."""
        settings, plan = chosen.settings, chosen.plan
        if not settings.weighs(chosen.policy):
            return None
        if self._given_costs is not None:
            return self._given_costs
        known = self._costs_of_one
        if slots == 1 and not fine and known is not None and known.rows[-1] > plan.budget:
            return known
        batch = 1 if slots == 1 else min(settings.max_batch, BATCH)
        key = chosen.policy, plan, fine, batch
        if key not in self._costs:
            # Their own matrix and contexts, so that nothing is learnt of it.
            without = tuple({*settings.without, "depth", "budget"})
            apart = chosen._replace(
                settings=settings.having(matrix_scope="request", without=without)
            )

            def grafter(slots: int) -> Grafter:
                return apart.parts(self.memory, slots, None).grafter

            def request(prompt: list[int], limit: int) -> Request:
                endless = SamplingParams(max_new_tokens=limit, ignore_eos=True)
                return self.request(0, prompt, endless)

            self._costs[key] = measure_costs(
                self.target,
                chosen.drafter,
                grafter,
                plan,
                request,
                self.token_count,
                fine=fine,
                batch=batch,
            )
        return self._costs[key]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def _params(sampling: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    if sampling is not None and options:
        raise ValueError(f"give sampling or {', '.join(options)}, not both")
    if own := [n for n in options if n in EngineSettings.__dataclass_fields__]:
        raise ValueError(
            f"{', '.join(own)}: settings of the engine, so give them to graft.load; of these, "
            "policy and budget alone may change from call to call"
        )
    return sampling or SamplingParams.from_kwargs(**options)
