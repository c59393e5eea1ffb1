"""A file of settings: TOML, whose nested tables are dotted names. Parses no setting."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cordwood.errors import ConfigError


def read_file(path: str) -> dict[str, object]:
    """The settings of a TOML file by dotted name, unparsed."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file at {os.fspath(path)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not TOML: {error}") from None
    return _flatten(tables, "")


def _flatten(table: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Nested TOML tables → dotted names, so ``[ingress] buffer`` is ``ingress.buffer``."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
