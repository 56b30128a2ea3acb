"""Entry point of the example for `python -m`, both here and in a copy in another folder."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("torch") is None:
    sys.exit("this training needs torch, which is not installed: pip install 'ckpttool[torch]'")
runpy.run_path(str(Path(__file__).with_name("train.py")), run_name="__main__")
