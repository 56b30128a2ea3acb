"""`python -m tests.nightly.prepare_mindformers FOLDER [VERSION…]`: install MindFormers for its real starts.

All versions take 7 GB. The starts of the PyNative trainer need 1.9.0 and 2.1.0, which take 3 GB, and nothing else: the
package index has MindSpore and MindFormers, and the tests write their own data. `run_mindformer.py` and
`scripts/msrun_launcher.sh`, with which the static trainer starts, are in no package: take them from MindFormers'
repository, at the branch of each version, into FOLDER/VERSION.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MINDSPORE = {  # the newest MindSpore that this MindFormers starts with on a CPU
    "1.3.2": "2.7.2", "1.6.0": "2.7.2", "1.7.0": "2.7.2", "1.8.0": "2.7.2", "1.9.0": "2.10.0", "2.1.0": "2.10.0",
}  # fmt: skip
BESIDE = [
    "pyyaml", "tqdm", "regex", "ftfy", "sentencepiece", "jieba", "rouge_chinese", "tokenizers", "tiktoken", "jinja2",
    "setproctitle", "tensorboardX", "deprecated", "pybind11", "transformers==4.57.1", "datasets", "mindpet==1.0.4",
    "opencv-python-headless", "numpy<2", "psutil", "nltk", "pyarrow==19.0.0",
]  # fmt: skip


def prepare(place: Path, version: str) -> None:
    """Make FOLDER/VERSION, with an environment that versions with the same MindSpore share."""
    home, environment = place / version, place / f"mindspore-{MINDSPORE[version]}"
    home.mkdir(parents=True, exist_ok=True)
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        wanted = [f"mindspore=={MINDSPORE[version]}", *BESIDE]
        subprocess.run([environment / "bin/pip", "install", "-q", *wanted], check=True)
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"mindformers=={version}"]
        subprocess.run(download, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(home)
    if not (home / "venv").exists():
        (home / "venv").symlink_to(environment.resolve())
    missing = [name for name in ("run_mindformer.py", "scripts/msrun_launcher.sh") if not (home / name).exists()]
    if missing:
        print(f"{home}: for the static trainer, take {' and '.join(missing)} from MindFormers' repository")


if __name__ == "__main__":
    for each in sys.argv[2:] or MINDSPORE:
        prepare(Path(sys.argv[1]), each)
