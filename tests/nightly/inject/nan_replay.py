"""Compute a capture again in a trainer's Python, and print the answer as JSON, with the exit code.

python nan_replay.py CAPTURE ENTRY: the entry is a function of a script beside this one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
capture, entry = sys.argv[1:]
done = subprocess.run(
    [sys.executable, "-m", "ckpttool", "nan", "replay", capture, "--entry", entry, "--format", "json"],
    env=os.environ | {"PYTHONPATH": f"{HERE.parents[3]}{os.pathsep}{HERE.parent}"},
    capture_output=True,
    text=True,
    check=False,
)
print(json.dumps({"exit": done.returncode, "said": done.stderr, **json.loads(done.stdout or "{}")}))
