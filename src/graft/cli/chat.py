"""`graft chat`: a conversation that keeps its cache and its matrix from turn to turn.

At a terminal, lines are asked for (with a history); else each line of stdin is a turn, and stdout
holds the answers alone. A stopped answer stays in the conversation as far as it came.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli import options as o
from graft.cli.loading import load_engine, sampling_params
from graft.cli.notes import held_warnings, note
from graft.cli.prompt_text import decoded
from graft.cli.screen import Screen
from graft.cli.shared import ANSWER, DRAW, ENGINE, MODEL, shares
from graft.cli.summary import legend, number

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.request import Result
    from graft.sampling_params import SamplingParams

__all__ = ["chat_command"]

HELP = """\
/reset   start a new conversation (the matrix keeps what it has learnt)
/stats   numbers of this conversation
/help    this list
/quit    leave; so does Ctrl-D
Ctrl-C   stop the answer; what is there of it stays in the conversation"""


@shares(ANSWER, DRAW, MODEL, ENGINE, max_new_tokens=512)
def chat_command(
    context: typer.Context,
    system: Annotated[
        str | None, typer.Option("--system", help="What the model is told first.")
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Talk with a chat model; /help lists the commands."""
    params = sampling_params(context.params)
    with load_engine(context.params, quiet=quiet) as engine:
        _talk(engine, params, system, quiet=quiet)


def _talk(engine: Engine, params: SamplingParams, system: str | None, *, quiet: bool) -> None:
    if not engine.tokenizer.chat_template:
        raise ValueError(
            f"{engine.name} has no chat template, so it cannot chat: take an instruct model, or "
            "continue a text with: graft generate --raw"
        )
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    chat = Chat(engine, params, system, at_terminal=at_terminal, quiet=quiet)
    if at_terminal and not quiet:
        note(f"{engine.name} is ready. /help lists the commands, Ctrl-D ends.")
    for line in _typed_lines() if at_terminal else _piped_lines():
        if line.strip() == "/quit":
            break
        try:
            chat.take(line)
        except ValueError as error:
            if not at_terminal:
                raise
            note(f"error: {error}")
        if at_terminal:
            note("")


class Chat:
    """A conversation.

    Args:
        at_terminal: a person types, who can stop an answer by Ctrl-C.
        quiet: no legend below the answers and no warnings.
    """

    def __init__(
        self,
        engine: Engine,
        params: SamplingParams,
        system: str | None,
        *,
        at_terminal: bool,
        quiet: bool,
    ) -> None:
        self._engine = engine
        self._params = params
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self._results: list[Result] = []
        self._at_terminal = at_terminal
        self._quiet = quiet
        self._screen = Screen(sys.stdout)

    def take(self, line: str) -> None:
        """A line of the user: a command, a turn, or nothing.

        Raises:
            ValueError: the turn cannot be answered; it is not part of the conversation then.
        """
        if not line.strip():
            return
        command = re.fullmatch(r"/\w*", line.strip())
        if command is None:
            self._answer(line)
        elif command[0] == "/reset":
            self._messages, self._results = list(self._start), []
            note("a new conversation")
        elif command[0] == "/stats":
            note(self._stats())
        elif command[0] == "/help":
            for each in HELP.splitlines():
                note(each)
        else:
            note(f"there is no command {command[0]}; /help lists them")

    def _answer(self, line: str) -> None:
        turn = {"role": "user", "content": line}
        try:
            stream = self._engine.stream([*self._messages, turn], self._params, reuse_prefix=True)
        except ValueError as error:
            more = "; /reset starts a new conversation" if self._messages != self._start else ""
            raise ValueError(f"this turn cannot be answered: {error}{more}") from error
        said: list[str] = []
        stopped = False
        with held_warnings(quiet=self._quiet), self._screen.answer(), stream:
            try:
                for token in stream:
                    said.append(token.text)
                    self._screen.write(token.text, token.source.name.lower())
            except KeyboardInterrupt:
                if not self._at_terminal:
                    raise
                stopped = True
        if said:
            self._messages += [turn, {"role": "assistant", "content": "".join(said)}]
        if stopped:
            note("(stopped)" if said else "(stopped before it began: the turn is forgotten)")
        else:
            self._finish(stream.results[0])

    def _finish(self, result: Result) -> None:
        self._results.append(result)
        if self._screen.terminal and not self._quiet:
            grown = self._engine.policy != "plain"
            legend(Screen(sys.stderr), result.sources, grown=grown)
        if result.finish_reason == "length":
            full = result.usage.completion_tokens < self._params.max_new_tokens
            note(
                "(the context is full: /reset starts a new conversation)"
                if full
                else f"(cut at {self._params.max_new_tokens} tokens: see --max-new-tokens)"
            )

    def _stats(self) -> str:
        if not self._results:
            return "no finished answers yet"
        results = self._results
        usages = [r.usage for r in results]
        tokens = sum(u.completion_tokens for u in usages)
        rounds = sum(r.stats.rounds for r in results)
        accepted = sum(r.stats.accepted_draft + r.stats.accepted_retrieved for r in results)
        seconds = sum(r.stats.decode_seconds for r in results)
        parts = [
            f"{len(results)} answer{'s' * (len(results) != 1)}",
            f"{tokens} tokens",
            f"tau {number((accepted + rounds) / rounds if rounds else None)}",
            f"{number((tokens - len(results)) / seconds if seconds else None)} tokens/s",
            f"{sum(u.cached_tokens for u in usages)} of {sum(u.prompt_tokens for u in usages)} "
            "prompt tokens found in the cache",
        ]
        return " \u00b7 ".join(parts)


def _typed_lines() -> Iterator[str]:
    """Lines from a person, until Ctrl-D."""
    with suppress(ImportError):  # not everywhere; it gives input() its editing and its history
        import readline  # noqa: F401

    while True:
        try:
            if sys.stdout.isatty():
                yield input("> ")
            else:  # input() would write the question to stdout, among the answers
                print("> ", end="", file=sys.stderr, flush=True)
                yield input()
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            note("")
            note("(Ctrl-D or /quit ends)")
        except UnicodeDecodeError as error:
            note(f"error: the line is not {error.encoding} text: set the terminal to UTF-8")


def _piped_lines() -> Iterator[str]:
    """Lines of stdin, each when it is there."""
    for count, data in enumerate(sys.stdin.buffer if sys.stdin is not None else (), 1):
        yield decoded(data, f"line {count} of stdin").rstrip("\r\n")
