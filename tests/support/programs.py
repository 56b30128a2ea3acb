"""Programs of the system, replaced by scripts that print what a test says."""

from __future__ import annotations

from pathlib import Path


def program(folder: Path, name: str, *, output: str, exit_code: int = 0, then: str = "") -> Path:
    """Write a script that notes its arguments in `NAME.asked`, and prints an output."""
    (folder / f"{name}.out").write_bytes(output.encode("utf-8", "surrogateescape"))
    path = folder / name
    lines = [f"#!{folder}/sh", f'echo "$*" >> {folder}/{name}.asked', f"cat {folder}/{name}.out", then]
    path.write_text("\n".join([*filter(None, lines), f"exit {exit_code}\n"]))
    path.chmod(0o755)
    return path
