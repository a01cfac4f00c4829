"""Pictures and figures of what a simulated accelerator has executed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from aloader.testing import SimulatedAccelerator
from aloader.testing.simulated_streams import Span
from aloader.testing.timeline import as_svg, as_text, idle_share, overlap

TRACE = [
    Span("side", "batch 0", 0.000, 0.004, 100),
    Span("side", "batch 1", 0.004, 0.008, 100),
    Span("compute", "step 0", 0.004, 0.010),
    Span("compute", "step <1>", 0.012, 0.016),
]


def test_overlap_is_the_time_that_both_streams_work() -> None:
    assert overlap(TRACE, "side", "compute") == overlap(TRACE, "compute", "side") == pytest.approx(0.004)
    assert overlap(TRACE, "side", "nothing") == 0


def test_the_idle_share_is_between_the_first_begin_and_the_last_end() -> None:
    assert idle_share(TRACE, "side") == pytest.approx(0)
    assert idle_share(TRACE, "compute") == pytest.approx(2 / 12)
    assert idle_share(TRACE, "nothing") == 1


def test_the_text_has_a_row_per_stream_and_names_or_numbers_in_the_bars() -> None:
    assert as_text(TRACE, width=41) == (
        "compute  ········[==step 0==]····[==1===]\n"
        "side     [==0===][==1===]················\n"
        "         0                          16 ms\n"
    )


@pytest.mark.parametrize("width", [0, 20, 79, 200])
def test_all_lines_are_of_the_width_that_was_asked_for(width: int) -> None:
    assert {len(line) for line in as_text(TRACE, width).splitlines()} == {max(width, 9 + 10)}


def test_nothing_can_be_drawn_too() -> None:
    assert as_text([]) == "nothing was executed\n"
    ET.fromstring(as_svg([]))
    assert as_text([Span("a", "b", 1.0, 1.0 + 1e-9)])
    ET.fromstring(as_svg([Span("a", "b", 1.0, 1.0 + 1e-9)]))


def test_the_svg_is_a_document_with_bars_labels_and_ticks() -> None:
    root = ET.fromstring(as_svg(TRACE))
    space = "{http://www.w3.org/2000/svg}"
    bars = root.findall(f"{space}rect")
    assert [bar.get("class") for bar in bars] == ["work0", "work1", "copy0", "copy1"]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert widths[0] == pytest.approx(1.5 * widths[2], rel=1e-3)
    titles = [bar.findtext(f"{space}title") for bar in bars]
    assert titles[1] == "step <1>: 12.000 to 16.000 ms"
    assert titles[2] == "batch 0: 0.000 to 4.000 ms, 100 bytes"
    texts = [text.text for text in root.findall(f"{space}text")]
    assert {"compute", "side", "step 0", "step <1>", "batch 1", "0 ms", "2", "16"} <= set(texts)


def test_a_real_trace_can_be_drawn() -> None:
    sim = SimulatedAccelerator()
    sim.open()
    sim.launch("step", 1e-3)
    sim.synchronize()
    assert "[=" in as_text(sim.trace)
    assert "<rect" in as_svg(sim.trace)
