"""Lets the example run as `python -m`, here as well as where it was copied to."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("train.py")), run_name="__main__")
