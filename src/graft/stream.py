"""TokenStream: the tokens of a call while they come, and its results once they have."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from graft.request import Request, Result, StreamToken


class TokenStream:
    """The tokens of a call as they are committed; afterwards its results.

    Closing it early (`close`, or leaving a `with` block) stops the generation.
    """

    def __init__(self, requests: Sequence[Request], tokens: Generator[StreamToken]) -> None:
        self._requests = requests
        self._tokens = tokens

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> StreamToken:
        return next(self._tokens)

    @property
    def results(self) -> list[Result]:
        """Results of all requests, once the stream has ended."""
        if not all(r.finished for r in self._requests):
            raise RuntimeError("the results are there when the stream has ended")
        return [r.result() for r in self._requests]

    def close(self) -> None:
        """Stop generating."""
        self._tokens.close()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
