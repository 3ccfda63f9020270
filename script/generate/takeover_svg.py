"""Records `script/demo` and draws it as docs/images/demo.svg: `python -m script.generate.takeover_svg`.

Each line appears in the picture when the run printed it; waits of more than 1.2 seconds are shortened. The
animation runs once. Where it is not wanted (`prefers-reduced-motion`), and after it, the picture shows the end.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs" / "images" / "demo.svg"
_WIDTH, _LINE, _FONT, _LONGEST_WAIT, _END = 860, 18, 13, 1.2, 6.0
_ROWS: Final = 26
_LIGHTS: Final = ("#ff6159", "#febc2e", "#28c840")
#: characters of the longest line
_COLUMNS: Final = 104
_COLOURS: Final = {r"SIGKILL|kill -9": "bad", r"demo ok|\bis live\b|\bequal\b": "good", r"^\$": "prompt"}


class Line(NamedTuple):
    """A printed line and its second in the picture."""

    at: float
    text: str


def record(*command: str) -> list[Line]:
    """Run the command; return what it printed.

    Raises SystemExit if it fails, because a picture shows a run that ended well.
    """
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    lines, at, before = [Line(0.0, "$ script/demo")], 0.5, time.monotonic()
    for each in process.stdout:
        now = time.monotonic()
        at, before = at + min(now - before, _LONGEST_WAIT), now
        text = re.sub(r"/\S*/(\w[\w.-]*)", r"\1", each.rstrip())[:_COLUMNS]
        lines.append(Line(at, text))
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return lines


def draw(lines: list[Line]) -> str:
    """Return the recording as an SVG that repeats; it scrolls as a terminal does."""
    seconds, height = lines[-1].at + _END, 52 + _LINE * _ROWS
    rows, moves = [], []
    for number, line in enumerate(lines):
        kind = next((name for pattern, name in _COLOURS.items() if re.search(pattern, line.text)), "")
        rows.append(
            f'<text class="{kind}" x="18" y="{_LINE * (number + 1)}" '
            f'style="animation-delay:{line.at:.1f}s">{escape(line.text)}</text>'
        )
        if number >= _ROWS:
            moves.append(f"{100 * line.at / seconds:.2f}%{{transform:translateY({-_LINE * (number + 1 - _ROWS)}px)}}")
    end = f"transform:translateY({-_LINE * max(0, len(lines) - _ROWS)}px)"
    style = (
        f"text{{font:{_FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dde5;white-space:pre;"
        "opacity:0;animation:line 0.01s forwards}@keyframes line{to{opacity:1}}"
        ".bad{fill:#ff8f80}.good{fill:#8fd694}.prompt{fill:#ffffff;font-weight:bold}"
        f".all{{animation:move {seconds:.1f}s step-end forwards;{end}}}"
        f"@keyframes move{{0%{{transform:none}}{''.join(moves)}100%{{{end}}}}}"
        "@media (prefers-reduced-motion:reduce){text{opacity:1;animation:none}.all{animation:none}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            "<title>A run of script/demo: a process is killed, the other one takes over, all is verified</title>",
            f"<style>{style}</style>",
            f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#1b222b"/>',
            *(f'<circle cx="{20 + 18 * i}" cy="18" r="5.5" fill="{c}"/>' for i, c in enumerate(_LIGHTS)),
            f'<svg y="37" width="{_WIDTH}" height="{height - 43}"><g class="all">',
            *rows,
            "</g></svg>",
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(record(sys.executable, "-m", "examples.clearing.demo", *sys.argv[1:])), encoding="utf-8")
