"""The command line: `graft generate`, `chat`, `demo`, `verify`, `models`.

One file per command; what they share is in `app` (entry point, errors), `options`, `prompt_text`,
`loading`, `screen` (stdout) and `notes` (stderr). Importing this package imports neither torch
nor Transformers: commands import the library when they run, so that help and mistakes are fast.
"""

from graft.cli.app import app, main

__all__ = ["app", "main"]
