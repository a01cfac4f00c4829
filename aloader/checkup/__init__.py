"""`aloader.doctor`: what on this machine may stand in a loader's way, and what to change.

Each file below is about one subject, and has two halves: `look`, which collects facts and decides nothing, and `judge`,
which makes checks of facts, and looks at nothing. `doctor` has them all looked at, each within a time of its own.
"""
