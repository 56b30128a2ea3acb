"""Settings that are not on the command line, from the environment or from a `ckpttool.toml` above the runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckpttool.core.commands import output
from ckpttool.core.errors import UsageError, unknown_word

FILE = "ckpttool.toml"

KEYS: dict[str, tuple[tuple[type, ...], str]] = {
    "dir": ((str,), "text"),
    "level": ((str,), "text"),
    "format": ((str,), "text"),
    "grace": ((str, int, float), 'a time such as "5m", or seconds'),
    "world-size": ((int,), "a whole number"),
}
"""Key in the file -> the types of its value, and their description.

Each variable is named after its key: CKPTTOOL_DIR.
"""

_KEY_OF = {
    "path": "dir",
    "what": "dir",
    "tree": "dir",
    "level": "level",
    "fmt": "format",
    "grace": "grace",
    "world_size": "world-size",
}
"""Parameter name -> key, for every command with that parameter."""

_WITHOUT = frozenset({"explain", "guide", "schema"})
"""Commands that ignore settings, because people may need them when a setting is wrong."""


def variable_of(param: str, command: str) -> str | None:
    """Return the environment variable of a command's parameter, or None if it has no variable."""
    key = None if command in _WITHOUT else _KEY_OF.get(param)
    return None if key is None else f"CKPTTOOL_{key.upper().replace('-', '_')}"


class Settings(dict[str, Any]):
    """A `default_map` that gives typer each value missing from the command line, and records its source.

    Each value is looked up only when typer requests it: `--help` needs none of them.
    """

    def __init__(self, ctx: Any, *, with_file: bool) -> None:  # noqa: ANN401  typer's own
        """Store the command being parsed; its DIR determines where the file is searched for."""
        super().__init__()
        self.places: dict[str, str] = {}
        """Parameter name -> its source, a variable or the file."""
        self.passed_over: list[str] = []
        """The reasons why nearer settings files are not used."""
        self._ctx = ctx
        self._file: Mapping[str, Any] | None = None if with_file else {}
        self._place = ""

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401  the base class's signature
        """Return the value of a parameter; the default if it is not set."""
        command = self._ctx.info_name
        variable = variable_of(key, command)
        # Library calls are explicit; scale-skip needs a tree only without --steps.
        if variable is None or output.is_taken() or (key == "path" and self._ctx.params.get("steps") is not None):
            return default
        name = _KEY_OF[key]
        value, place = os.environ.get(variable), variable
        if not value:
            if self._file is None:
                self._file = self._read()
            value, place = self._file.get(name), self._place
        # By default prune compares checksums: a setting for all commands must not make it less thorough.
        if value is None or (command == "prune" and name == "level" and value == "structure"):
            return default
        self.places[key] = place
        return str(value)

    def describe(self) -> str:
        """Describe the settings with their sources."""
        places = dict.fromkeys(self.places.values())
        keys = {place: [_KEY_OF[key] for key, where in self.places.items() if where == place] for place in places}
        return "; ".join(f"{', '.join(dict.fromkeys(names))} from {place}" for place, names in keys.items())

    def _read(self) -> Mapping[str, Any]:
        """Read the nearest file in or above all named trees; if no tree is named, in or above the current folder."""
        params = self._ctx.params
        named = [params.get(key) for key in ("path", "tree", "what")] + list(params.get("more") or ())
        try:
            folder_now = Path.cwd()
        except OSError:  # the folder was deleted
            return {}
        folder = Path(
            os.path.commonpath([os.path.normpath(folder_now / path) for path in named if path] or [str(folder_now)])
        )
        place = next(filter(self._is_ours, (parent / FILE for parent in (folder, *folder.parents))), None)
        if place is None:
            return {}
        self._place = str(place)
        values = dict(_checked(self._place))
        if place.parent != folder_now:  # later, the tree around the working directory is used
            values.pop("dir", None)
        return values

    def _is_ours(self, place: Path) -> bool:
        """Return whether a settings file exists that no other user can write; `prune` relies on it."""
        try:
            link, file = place.lstat(), place.stat()
        except OSError:  # it may still exist: the later read reports the error
            return os.path.lexists(place)
        owners = {link.st_uid, file.st_uid} - {0, os.geteuid()}
        if not owners and not file.st_mode & stat.S_IWOTH:
            return True
        why = f"it belongs to another user (uid {min(owners)})" if owners else "every user can write to it"
        self.passed_over.append(f"{place} is ignored: {why}; use environment variables instead, or --no-config")
        return False


def _checked(path: str) -> Mapping[str, Any]:
    """Read a file, and reject unknown settings and invalid values.

    Raises:
        UsageError: The file has an unknown setting or an invalid value, or cannot be read.
    """
    table = _parsed(path)
    for key, value in table.items():
        if key not in KEYS:
            where = f"known settings: {', '.join(KEYS)}"
            raise UsageError(f"{path}: {unknown_word('key', key, list(KEYS), where)}")
        types, description = KEYS[key]
        if not isinstance(value, types) or isinstance(value, bool) or value == "":
            raise UsageError(f"{path}: {key} takes {description}, not {value!r}")
    return table


def _parsed(path: str) -> Mapping[str, Any]:
    import sys

    from ckpttool.core.formats.safe_yaml import read_bytes

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    content = read_bytes(path)
    try:
        table: Mapping[str, Any] = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML ({error}); correct it, or use --no-config") from None
    return table
