"""llama.cpp, timed from outside: the same model in the quantised weights of a GGUF file.

It is not the same target: weights of 4 or 5 bits and activations of 8 make other logits, so its
answers are not compared with plain decoding's. It stands in a report because it is what one would
run instead. Needs the package llama-cpp-python, which Graft does not install.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from graft.bench.outside import Asked, Outside
from graft.model_files import is_gguf
from graft.smollm2 import ALIAS, installed_gguf

METHOD = "llama.cpp"
CONTEXT = 8192  # where a model's own limit is not known
_ROOM = 256  # rows that its cache is a multiple of


class LlamaCpp:
    """A model as llama.cpp runs it.

    Args:
        path: of the GGUF file.
        threads: of the CPU.
        context: tokens of prompt and answer at most.
    """

    def __init__(self, path: Path, threads: int, context: int) -> None:
        import llama_cpp

        self._llama: Any = llama_cpp.Llama(
            model_path=str(path),
            n_ctx=-(-context // _ROOM) * _ROOM,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def generate(self, asked: Asked) -> Outside:
        """Answer one prompt, with nothing left of an earlier one."""
        assert not asked.lookup
        self._llama.reset()
        self._llama.set_seed(asked.seed)
        drawing = {"temp": asked.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        answer: list[int] = []
        times = [time.perf_counter()]
        for token in self._llama.generate(list(asked.prompt), **drawing, repeat_penalty=1.0):
            times.append(time.perf_counter())
            answer.append(int(token))
            if len(answer) == asked.max_new_tokens or token in asked.eos_token_ids:
                break
        return Outside(
            token_ids=answer,
            first_tokens=1,
            rounds=len(answer) - 1,
            finish_reason="stop" if answer[-1] in asked.eos_token_ids else "length",
            time_to_first_token=times[1] - times[0],
            latency_seconds=times[-1] - times[0],
        )


def find_gguf(model: str, given: str | None) -> Path:
    """The file that llama.cpp reads for a model.

    Raises:
        ValueError: without the package, or without a file.
    """
    if given is None and model.endswith(".gguf"):
        given = model
    if given is not None:
        found: Path | None = _checked(Path(given))
    else:
        found = installed_gguf() if model == ALIAS else None
    if found is None:
        raise ValueError(
            f"method {METHOD!r} reads a GGUF file, and none is known for {model}: name one with "
            "--gguf FILE"
        )
    if importlib.util.find_spec("llama_cpp") is None:
        raise ValueError(
            f"method {METHOD!r} needs the package llama-cpp-python: pip install llama-cpp-python"
        )
    return found


def told(path: Path) -> dict[str, Any]:
    """What a report says of a file: its name and the bytes per weight."""
    from gguf import GGUFReader

    tensors = GGUFReader(path).tensors
    size = sum(int(tensor.n_bytes) for tensor in tensors)
    return {
        "file": path.name,
        "bytes per weight": round(size / sum(int(tensor.n_elements) for tensor in tensors), 2),
    }


def _checked(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is no file: name the GGUF file that llama.cpp is to read")
    if not is_gguf(path):
        raise ValueError(f"{path} is no GGUF file: name the one that llama.cpp is to read")
    return path
