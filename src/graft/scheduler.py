"""The scheduler: requests that come and go while others decode, one step at a time.

A step is one prefill, of the request that has waited longest where there is room, or one round of
all that run. It knows requests and rounds, not prompts or settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from graft.decoder import BatchDecoder
from graft.metrics import CollapseAlarm
from graft.request import Request, StreamToken

# Makes a request of a prompt, its number and its settings of the draw.
MakeRequest = Callable[..., Request]


class Scheduler:
    """Requests of one decoder. Not for several threads at once.

    Args:
        max_batch: requests that decode together; more wait.
        alarm: is shown every round.
        make: makes requests for `add`.
    """

    def __init__(
        self, decoder: BatchDecoder, max_batch: int, alarm: CollapseAlarm, make: MakeRequest
    ) -> None:
        self._decoder, self._max_batch, self._alarm, self._make = decoder, max_batch, alarm, make
        self._waiting: deque[tuple[Request, Sequence[int]]] = deque()
        self._count = 0

    @property
    def waiting(self) -> list[Request]:
        """Requests without a slot yet."""
        return [request for request, _ in self._waiting]

    @property
    def running(self) -> list[Request]:
        """Requests that decode."""
        return list(self._decoder.running)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._decoder.running)

    def add(self, prompt: Any, **options: Any) -> Request:
        """Let a prompt wait for its turn.

        Args:
            prompt: as `Engine.generate` takes one. **options: as there, too.

        Returns:
            The request; its `index` stands in its tokens, and its `result()` is there once it is
            `finished`.

        Raises:
            ValueError: for a prompt or settings that are not supported.
        """
        request = self._make(self._count, prompt, **options)
        self.put(request)
        return request

    def put(self, request: Request, reuse: Sequence[int] = ()) -> None:
        """Let a request wait for its turn. `reuse`: as in `BatchDecoder.admit`."""
        self._count += 1
        self._waiting.append((request, reuse))

    def step(self) -> list[StreamToken]:
        """One prefill or one round; the tokens that it committed. Nothing where nothing waits or
        runs."""
        if self._waiting and len(self._decoder.running) < self._max_batch:
            return self._decoder.admit(*self._waiting.popleft())
        if not self._decoder.running:
            return []
        tokens = self._decoder.round()
        self._alarm.look(self._decoder.last_records)
        return tokens

    def cancel(self, request: Request) -> bool:
        """End a request where it stands, with finish_reason "cancelled"; what it has stays in its
        result. False where it was over already, or is none of these."""
        for place, (waiting, _) in enumerate(self._waiting):
            if waiting is request:
                del self._waiting[place]
                request.finish_reason = "cancelled"
                return True
        if not any(running is request for running in self._decoder.running):
            return False
        self._decoder.drop(request)
        return True
