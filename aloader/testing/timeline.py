"""What a simulated accelerator has executed, measured and drawn: one row per stream, time from left to right.

Takes the `trace` of `SimulatedAccelerator`. Times are virtual seconds; pictures show milliseconds.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from aloader.testing.simulated_streams import Span

#: Of the picture, in pixels.
_ROW, _BAR, _LEFT, _WIDTH, _TOP = 34, 24, 84, 960, 10
_CHARACTER = 6.5  # the width of one, about

#: Neutral on white and on black; two shades, so that neighbours can be told apart.
_STYLE = """
  text { font: 11px system-ui, sans-serif; fill: #333 }
  .label { fill: #fff; text-anchor: middle }
  .axis { stroke: #bbb }
  .tick { text-anchor: middle }
  .copy0 { fill: #4c7d9e } .copy1 { fill: #3a627d }
  .work0 { fill: #8a6d3b } .work1 { fill: #6f572f }
  @media (prefers-color-scheme: dark) { text { fill: #ccc } .axis { stroke: #555 } }
"""


def overlap(trace: Iterable[Span], first: str, second: str) -> float:
    """For how many seconds both streams were at work."""
    spans = list(trace)
    others = [span for span in spans if span.stream == second]
    return sum(
        max(0.0, min(span.end, other.end) - max(span.begin, other.begin))
        for span in spans
        if span.stream == first
        for other in others
    )


def idle_share(trace: Iterable[Span], stream: str) -> float:
    """How much of the time from its first begin to its last end a stream did nothing: 0 to 1."""
    spans = [span for span in trace if span.stream == stream]
    if not spans:
        return 1.0
    whole = max(span.end for span in spans) - min(span.begin for span in spans)
    return max(0.0, 1.0 - sum(span.end - span.begin for span in spans) / whole)


def as_text(trace: Iterable[Span], width: int = 100) -> str:
    """For a terminal. A bar shows its name, or the number in it, as there is room."""
    rows, begin, end = _rows(trace)
    if not rows:
        return "nothing was executed\n"
    left = max(map(len, rows)) + 2
    columns = max(width - left, 10)
    scale = columns / (end - begin)
    lines = []
    for stream, spans in rows.items():
        row = ["·"] * columns
        for span in spans:
            at = min(round((span.begin - begin) * scale), columns - 1)
            until = max(at + 1, min(round((span.end - begin) * scale), columns))
            row[at:until] = _bar(span.name, until - at)
        lines.append(f"{stream:<{left}}{''.join(row)}")
    last = f"{(end - begin) * 1e3:.3g} ms"
    return "\n".join((*lines, " " * left + "0" + last.rjust(columns - 1))) + "\n"


def as_svg(trace: Iterable[Span]) -> str:
    """For a page: a whole SVG document, readable on light and on dark ground."""
    rows, begin, end = _rows(trace)
    scale = (_WIDTH - _LEFT - 20) / (end - begin) if rows else 1.0
    bottom = _TOP + _ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 30}" width="{_WIDTH}">',
        f"<style>{_STYLE}</style>",
        *_axis((end - begin) * 1e3, scale / 1e3, bottom),
    ]
    for number, (stream, spans) in enumerate(rows.items()):
        top = _TOP + _ROW * number
        parts.append(f'<text x="4" y="{top + _BAR / 2 + 4:g}">{html.escape(stream)}</text>')
        for shade, span in enumerate(spans):
            parts.extend(_rectangle(span, _LEFT + (span.begin - begin) * scale, top, scale, shade % 2))
    return "\n".join((*parts, "</svg>")) + "\n"


def _rows(trace: Iterable[Span]) -> tuple[dict[str, list[Span]], float, float]:
    """The spans of each stream, the streams by name; the first begin and the last end."""
    spans = sorted(trace, key=lambda span: (span.begin, span.end))
    rows: dict[str, list[Span]] = {stream: [] for stream in sorted({span.stream for span in spans})}
    for span in spans:
        rows[span.stream].append(span)
    return rows, min((span.begin for span in spans), default=0.0), max((span.end for span in spans), default=0.0)


def _labels(name: str) -> Iterator[str]:
    """The name, and what may stand for it: its last number."""
    yield name
    numbers: Sequence[str] = re.findall(r"\d+", name)
    yield from numbers[-1:]


def _bar(name: str, room: int) -> str:
    if room == 1:
        return "▌"
    for label in _labels(name):
        if len(label) <= room - 2:
            return f"[{label.center(room - 2, '=')}]"
    return f"[{'=' * (room - 2)}]"


def _rectangle(span: Span, left: float, top: float, scale: float, shade: int) -> Iterator[str]:
    width = max((span.end - span.begin) * scale, 0.5)
    kind = "copy" if span.nbytes else "work"
    told = f"{span.name}: {span.begin * 1e3:.3f} to {span.end * 1e3:.3f} ms"
    told += f", {span.nbytes} bytes" if span.nbytes else ""
    yield (
        f'<rect class="{kind}{shade}" x="{left:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" rx="2">'
        f"<title>{html.escape(told)}</title></rect>"
    )
    label = next((label for label in _labels(span.name) if len(label) * _CHARACTER <= width - 4), None)
    if label is not None:
        middle = f'x="{left + width / 2:.2f}" y="{top + _BAR / 2 + 4:g}"'
        yield f'<text class="label" {middle}>{html.escape(label)}</text>'


def _axis(milliseconds: float, scale: float, bottom: float) -> Iterator[str]:
    """The line below, and about ten ticks at round times."""
    yield f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - 20}" y2="{bottom}"/>'
    if milliseconds <= 0:
        return
    power = 10.0 ** math.floor(math.log10(milliseconds / 10))
    step = next(power * times for times in (1, 2, 5, 10) if milliseconds / (power * times) <= 10)
    for number in range(int(milliseconds / step + 1e-9) + 1):
        left = _LEFT + number * step * scale
        unit = " ms" if number == 0 else ""
        yield f'<line class="axis" x1="{left:.2f}" y1="{_TOP}" x2="{left:.2f}" y2="{bottom + 4}"/>'
        yield f'<text class="tick" x="{left:.2f}" y="{bottom + 18}">{number * step:g}{unit}</text>'
