"""Servers and fakes for tests: of aloader, and of programs that use it.

The names are looked up when they are asked for: a server's process, and whoever wants one of them, imports no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.lazy import lazily

if TYPE_CHECKING:
    from aloader.testing.faults import Fault, Faults, Latency
    from aloader.testing.faultserver import FaultServer
    from aloader.testing.faulty import FaultyStore
    from aloader.testing.s3server import S3Server
    from aloader.testing.simloop import SimLoop, simulate
    from aloader.testing.simulated import SimulatedAccelerator
    from aloader.testing.synthetic import Synthetic

__all__ = [
    "Fault",
    "FaultServer",
    "Faults",
    "FaultyStore",
    "Latency",
    "S3Server",
    "SimLoop",
    "SimulatedAccelerator",
    "Synthetic",
    "simulate",
]


if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {
            "Fault": "faults",
            "FaultServer": "faultserver",
            "Faults": "faults",
            "FaultyStore": "faulty",
            "Latency": "faults",
            "S3Server": "s3server",
            "SimLoop": "simloop",
            "SimulatedAccelerator": "simulated",
            "Synthetic": "synthetic",
            "simulate": "simloop",
        },
    )
