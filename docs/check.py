"""Checks README.md and docs/: links lead somewhere, Python blocks compile, and blocks marked `<!-- run -->` run.

    python docs/check.py [--no-run]

Every Python block has a mark: `<!-- run -->` or `<!-- fragment -->`. A block to run is a whole program: it is run as a
script of its own, in an empty folder, in a fresh interpreter.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 120

MARK = r"(?:^<!-- (?P<mark>run|fragment) -->\n)?"
FENCE = re.compile(rf"{MARK}^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int
    text: str
    mark: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match["language"] == "python":
            yield Block(page, text.count("\n", 0, match.start("text")) + 1, match["text"], match["mark"])


def anchors(page: Path) -> set[str]:
    """The fragment of every heading, as GitHub makes them."""
    titles = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        target, _, fragment = match["target"].partition("#")
        if re.match(r"\w+:", target):
            continue  # another site: not ours to fetch
        aim = (page.parent / target).resolve() if target else page
        if not aim.exists():
            yield f"{page.relative_to(ROOT)}: no such file: {match['target']}"
        elif fragment and aim.suffix == ".md" and fragment not in anchors(aim):
            yield f"{page.relative_to(ROOT)}: no such heading: {match['target']}"


def does_not_compile(block: Block) -> str | None:
    """Fragments may await at their top level, as in a notebook."""
    try:
        compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return f"{block}: {error}"
    return None


def does_not_run(block: Block) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "example.py"
        program.write_text(block.text)
        command = [sys.executable, "-W", "error", str(program)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"{block}: still running after {SECONDS} s"
    return f"{block}: exit status {done.returncode}\n{done.stderr}" if done.returncode or done.stderr else None


def main() -> int:
    run = "--no-run" not in sys.argv[1:]
    found = [block for page in PAGES for block in blocks(page)]
    faults = [fault for page in PAGES for fault in broken_links(page)]
    faults += [f"{block}: mark it <!-- run --> or <!-- fragment -->" for block in found if not block.mark]
    faults += [fault for block in found if (fault := does_not_compile(block))]
    if run:
        faults += [fault for block in found if block.mark == "run" and (fault := does_not_run(block))]
    print("\n".join(faults) or f"{len(PAGES)} pages and {len(found)} Python blocks are sound")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
