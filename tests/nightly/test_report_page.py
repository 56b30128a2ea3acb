"""The page of `report` in a real browser: what is to be seen is there, nothing sticks out, and nothing is asked for.

Chromium's own command line takes the pictures; a copy of the page with a script in it tells where things lie.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import ckpttool
from ckpttool.types import EvidenceQuestion, LogQuestion, ReportQuestion, ResumeQuestion, TreeQuestion
from tests.report.page.test_page import DARK, LIGHT, contrast
from tests.support.trainer_trees import damaged
from tests.support.trees import TreeBuilder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif("not config.getoption('--nightly')", reason="starts a browser forty times: --nightly"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

PROBE = """<script>
const all = [...document.querySelectorAll('body *')];
const boxed = each => [each, each.getBoundingClientRect()];
const holdsText = each => [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim());
parent.postMessage(JSON.stringify({
  seen: all.filter(each => each.tagName === 'rect').map(boxed).map(([each, box]) => ({
    kind: each.getAttribute('class'), x: box.x, y: box.y, width: box.width, height: box.height,
    inMap: each.closest('.strip') !== null})),
  wide: all.map(boxed).filter(([, box]) => box.width > 1 && (box.right > innerWidth + 0.5 || box.left < -0.5))
    .map(([each]) => each.tagName + '.' + each.getAttribute('class')),
  small: all.filter(holdsText).filter(each => parseFloat(getComputedStyle(each).fontSize) < 12)
    .map(each => each.tagName),
  width: document.documentElement.scrollWidth,
  inner: innerWidth,
  height: document.documentElement.scrollHeight,
}), '*');
</script></body>"""
"""Goes into a copy of the page, in a frame: a window of Chromium's is no narrower than 500, a frame is."""

FRAME = """<!doctype html><body style="margin:0">
<iframe src="probed.html" style="width:{width}px;height:9000px;border:0"></iframe><script>
addEventListener('message', event => document.documentElement.setAttribute('data-told', event.data));
</script>"""


@dataclass(frozen=True)
class Browser:
    """One profile, used by one test."""

    folder: Path

    def run(
        self, page: Path, *options: str, width: int, height: int, dark: bool = False
    ) -> subprocess.CompletedProcess[str]:
        assert CHROMIUM is not None
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--no-default-browser-check", "--force-color-profile=srgb", f"--window-size={width},{height}",
            f"--user-data-dir={self.folder / 'profile'}",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []), *options, page.as_uri(),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    def told(self, page: Path, *, width: int, dark: bool = False) -> dict[str, Any]:
        """Say where things lie."""
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", text).replace("</body>", PROBE)
        (self.folder / "probed.html").write_text(text, encoding="utf-8")
        frame = self.folder / "frame.html"
        frame.write_text(FRAME.format(width=width), encoding="utf-8")
        dom = self.run(frame, "--dump-dom", "--virtual-time-budget=5000", width=2600, height=2000, dark=dark).stdout
        (told,) = re.findall(r'data-told="([^"]*)"', dom)
        found: dict[str, Any] = json.loads(told.replace("&quot;", '"').replace("&amp;", "&"))
        return found

    def picture(self, page: Path, *, width: int, height: int, dark: bool = False) -> Picture:
        file = self.folder / "picture.png"
        self.run(page, f"--screenshot={file}", width=width, height=height, dark=dark)
        return Picture.read(file)


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    rows: Sequence[bytes]
    """RGB or RGBA."""
    each: int
    """Bytes of a pixel."""

    @staticmethod
    def read(file: Path) -> Picture:
        """Decode a PNG of 8 bits a channel without interlacing."""
        data, at, body = file.read_bytes(), 8, b""
        width = height = each = 0
        while at < len(data):
            size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
            chunk = data[at + 8 : at + 8 + size]
            if kind == b"IHDR":
                width, height = int.from_bytes(chunk[:4], "big"), int.from_bytes(chunk[4:8], "big")
                assert chunk[8] == 8
                each = {2: 3, 6: 4}[chunk[9]]
            body += chunk if kind == b"IDAT" else b""
            at += 12 + size
        raw, rows, above = zlib.decompress(body), [], bytes(width * each)
        for row in range(height):
            start = row * (width * each + 1)
            line = bytearray(raw[start + 1 : start + 1 + width * each])
            _undo(raw[start], line, above, each)
            above = bytes(line)
            rows.append(above)
        return Picture(width, height, rows, each)

    def colour(self, x: float, y: float) -> str:
        row, at = self.rows[int(y)], int(x) * self.each
        return "#" + row[at : at + 3].hex()


def _undo(kind: int, line: bytearray, above: bytes, each: int) -> None:
    """Undo the filter of a row of a PNG."""
    for at in range(len(line)) if kind else ():
        left = line[at - each] if at >= each else 0
        up, corner = above[at], above[at - each] if at >= each else 0
        if kind == 4:
            guess = min((left, up, corner), key=lambda near: abs(left + up - corner - near))
        else:
            guess = (0, left, up, (left + up) // 2)[kind]
        line[at] = (line[at] + guess) & 0xFF


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.fixture(params=["ranks", "files", "nothing", "names"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A page of each kind."""
    tree = tmp_path / "tree"
    tree.mkdir()
    if request.param == "files":
        root = damaged("dcp_fsdp2_4ranks--cut-shard", tree)
    else:
        prefix = "w" * 180 if request.param == "names" else "llama3_8b"
        builder = TreeBuilder(tree).legacy(ranks=24, prefix=prefix)
        for number in range(1, 1 if request.param == "nothing" else 6):
            builder.save(epoch=number, step=500)
        if request.param != "nothing":
            builder.remove(builder.shard(3, 5, 500)).truncate(builder.shard(17, 5, 500), 60)
            with (builder.output / "log.csv").open("w") as log:
                log.write("step,global_norm,embedding_local_norm,loss\n")
                log.writelines(
                    f"{step},{9 if step == 1700 else 1},{step / 9000},{5 / step}\n" for step in range(1, 2700)
                )
        else:
            builder.save(epoch=1, step=500)
            for rank in range(24):
                builder.truncate(builder.shard(rank, 1, 500), 0)
        root = builder.output
    logs = tuple(map(str, root.glob("log.csv")))
    question = ReportQuestion(
        tree=TreeQuestion(path=str(root)),
        choice=ResumeQuestion(logs=EvidenceQuestion(threshold=0.2, logs=LogQuestion(patterns=logs)) if logs else None),
        keep_last=2,
    )
    file = tmp_path / "report.html"
    file.write_text(ckpttool.report(question), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [320, 768, 1280, 2560])
def test_nothing_sticks_out_and_every_text_can_be_read_at_any_width(page: Path, browser: Browser, width: int) -> None:
    told = browser.told(page, width=width)
    assert told["inner"] == width
    assert (told["width"], told["wide"]) == (width, [])
    assert told["small"] == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (320, False), (320, True)])
def test_what_is_bad_is_there_in_its_colour_and_taller_than_what_is_whole(
    page: Path, browser: Browser, width: int, dark: bool
) -> None:
    look = DARK if dark else LIGHT
    told = browser.told(page, width=width, dark=dark)
    seen = browser.picture(page, width=width, height=min(int(told["height"]), 6000), dark=dark)
    assert seen.colour(2, 2) == look["page"]
    marks = [each for each in told["seen"] if each["inMap"] and each["y"] + each["height"] < seen.height]
    names = {"ok": "good-fill", "doubt": "doubt-fill", "bad": "bad-fill"}
    for each in marks:
        if each["kind"] in names and each["width"] > 4:
            # Not the very middle: there, between single ranks, may be a gap.
            places = [(each["x"] + each["width"] * part / 7, each["y"] + each["height"] / 2) for part in range(1, 7)]
            assert look[names[each["kind"]]] in {seen.colour(*place) for place in places}, each
    tall = {kind: max((each["height"] for each in marks if each["kind"] == kind), default=0) for kind in ("ok", "bad")}
    assert not tall["bad"] or tall["bad"] > 1.5 * tall["ok"]


def test_the_page_asks_for_nothing_and_no_error_is_logged(page: Path, browser: Browser, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    done = browser.run(
        page,
        "--enable-logging=stderr",
        f"--log-net-log={log}",
        f"--screenshot={tmp_path / 'a.png'}",
        width=800,
        height=600,
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    text = log.read_text(encoding="utf-8", errors="replace")
    asked = {url for url in re.findall(r'"url":"([^"]*)"', text) if not url.startswith(("chrome", "data:", "about:"))}
    # Chromium itself asks its maker for the time and for accounts, whatever is shown.
    own = {url for url in asked if (urlsplit(url).hostname or "").endswith((".google.com", ".googleapis.com"))}
    assert asked - own <= {page.as_uri()}


def test_paper_is_white_in_the_dark_too(page: Path, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    browser.run(page, f"--print-to-pdf={file}", "--no-pdf-header-footer", width=800, height=600, dark=True)
    if shutil.which("pdftoppm") is None:
        pytest.skip("needs pdftoppm: apt-get install poppler-utils")
    subprocess.run(["pdftoppm", "-r", "50", "-f", "1", "-l", "1", "-png", file, tmp_path / "paper"], check=True)
    (first,) = tmp_path.glob("paper*.png")
    assert contrast(Picture.read(first).colour(3, 3), "#ffffff") == 1
