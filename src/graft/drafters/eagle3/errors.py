"""HeadError: a draft head that cannot be read or used."""

from __future__ import annotations


class HeadError(ValueError):
    """A head was refused; the message says what was found, what is supported and what to do."""
