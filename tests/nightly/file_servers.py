"""Real servers of files on the loopback, each over a folder, as a user that may not read all: SFTP, FTP, WebDAV."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nightly.borrowing import SCRIPTS, trainer_python
from tests.nightly.object_servers import free_ports, listens, until

PACKAGES = (
    "fsspec==2026.9.0",
    "paramiko==5.1.0",
    "webdav4==0.11.0",
    "pyftpdlib==2.2.0",
    "wsgidav==4.4.0",
    "cheroot==11.1.2",
)
NAME, PASSWORD = "nobody", "a-secret-of-the-tests"
_NOBODY = 65534
_SSHD = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {home}/host
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
AuthorizedKeysFile {home}/authorized
Subsystem sftp internal-sftp
ForceCommand internal-sftp
"""


@dataclass(slots=True, kw_only=True)
class FileServer:
    """A server that is up."""

    scheme: str
    url: str
    """As ckpttool is told its `folder`."""
    folder: Path
    options: dict[str, Any]
    """What fsspec's config says of this scheme."""
    process: subprocess.Popen[bytes]

    def hang(self) -> None:
        """Answer nothing more, and break off nothing."""
        _signal_all(self.process.pid, signal.SIGSTOP)

    def die(self) -> None:
        """Be gone at once."""
        _signal_all(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _signal_all(pid: int, number: signal.Signals) -> None:
    """Tell a process that these tests started, and all that it started: sshd has one for each connection."""
    children = [int(word) for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()]
    os.kill(pid, number)
    for child in children:
        _signal_all(child, number)


@contextmanager
def drivers(home: Path) -> Iterator[str]:
    """Install what reads and what serves, let this process import it, and yield the Python that has it."""
    python = trainer_python(home, *PACKAGES, borrows=False)
    (place,) = home.glob("lib/python*/site-packages")
    sys.path.append(str(place))
    try:
        yield python
    finally:
        sys.path.remove(str(place))


@contextmanager
def file_server(scheme: str, python: str) -> Iterator[FileServer]:
    """Start one; the test is skipped where it cannot be had."""
    # Not below a test's own folder, which is closed to all but its user.
    home = Path(tempfile.mkdtemp(prefix="served-"))
    home.chmod(0o755)
    folder = home / "data"
    folder.mkdir()
    (port,) = free_ports(1)
    start = {"sftp": _sshd, "ftp": _ftpd, "webdav": _webdavd}[scheme]
    try:
        command, url, options = start(home, folder, port, python)
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until(lambda: listens(port))
            yield FileServer(scheme=scheme, url=url, folder=folder, options=options, process=process)
        finally:
            if process.poll() is None:
                _signal_all(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        for path in home.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(home)


def _sshd(home: Path, folder: Path, port: int, python: str) -> tuple[list[str], str, dict[str, Any]]:
    del python
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if sshd is None or os.geteuid() != 0:
        pytest.skip("needs Debian's openssh-server, and root to let somebody else in")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)], check=True)
    shutil.copy(home / "user.pub", home / "authorized")
    (home / "sshd").write_text(_SSHD.format(port=port, home=home))
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {"key_filename": str(home / "user"), "look_for_keys": False, "allow_agent": False}
    return [sshd, "-D", "-e", "-f", str(home / "sshd")], f"sftp://{NAME}@127.0.0.1:{port}{folder}", options


def _ftpd(home: Path, folder: Path, port: int, python: str) -> tuple[list[str], str, dict[str, Any]]:
    del home
    command = [python, str(SCRIPTS / "serve_ftp.py"), str(port), str(folder), NAME, PASSWORD]
    return command, f"ftp://{NAME}@127.0.0.1:{port}", {"password": PASSWORD}


def _webdavd(home: Path, folder: Path, port: int, python: str) -> tuple[list[str], str, dict[str, Any]]:
    del home
    command = [python, str(SCRIPTS / "serve_webdav.py"), str(port), str(folder.parent), NAME, PASSWORD]
    return command, "webdav://data", {"base_url": f"http://{NAME}:{PASSWORD}@127.0.0.1:{port}"}


def served(server: FileServer, tree: Path, name: str) -> str:
    """Put a tree where the server shows it, with the times of its files, and return its root."""
    copied = Path(shutil.copytree(tree, server.folder / name))
    for path in (copied, *copied.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, _NOBODY, _NOBODY)
    return f"{server.url}/{name}"
