"""Files written whole or not at all, also on Ctrl-C and on a full disk.

It knows bytes and names, not what they mean.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` in the place of a file: written beside it, forced to the disk, then renamed.

    A link stays a link. Whatever goes wrong, the old file is untouched and nothing is left over.
    """
    place = Path(os.path.realpath(path))
    temp = place.with_name(f".graft-{secrets.token_hex(8)}.tmp")
    try:
        with temp.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temp, place)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise
