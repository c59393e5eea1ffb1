"""Refusals of a command line, as one sentence: what is wrong with which option, and where to look.

Typer's own messages name Python's types and its validator; they are put into plain words here.
"""

from __future__ import annotations

import re
from typing import Any

_WORDS = (
    (re.compile(r"^Value error, "), ""),
    (re.compile(r"^Input should be greater than or equal to "), "must be at least "),
    (re.compile(r"^Input should be less than or equal to "), "must be at most "),
    (re.compile(r"^Input should be a valid integer.*"), "must be a whole number"),
    (re.compile(r"^Input should be a valid number.*"), "must be a number"),
    (re.compile(r"^(?:file|directory|path) (?='.*' does not exist)", re.IGNORECASE), ""),
)


def refusal(error: Any) -> str:
    """Return the sentence for an exception of Typer."""
    sentence = _sentence(error).rstrip(".")
    ctx = getattr(error, "ctx", None)
    if ctx is None or "; " in sentence:  # it says what to do
        return sentence
    return f"{sentence}; see `{ctx.command_path} -h`"


def _sentence(error: Any) -> str:
    name = _parameter(error)
    text = error.message or ""
    if name and type(error).__name__ == "MissingParameter":
        return f"{name} is missing"
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    if near := getattr(error, "possibilities", None):
        text += f"; did you mean {min(near)}?"
    if name:
        return f"{name} {text}" if text.startswith("must ") else f"{name}: {text}"
    return text[:1].lower() + text[1:] if text.startswith("No such ") else text


def _parameter(error: Any) -> str:
    """Return the option or argument that an error is about, as a user writes it."""
    if hint := getattr(error, "param_hint", None):
        return hint if isinstance(hint, str) else " / ".join(hint)
    param = getattr(error, "param", None)
    if param is None:
        return ""
    return str(max(param.opts, key=len) if param.param_type_name == "option" else param.metavar)
