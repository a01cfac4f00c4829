"""Every decision of an epoch, as a pure state machine: events in, commands out.

No asyncio, processes, torch, clock, logging or I/O may enter here.
"""

from aloader.engine.config import DispatcherConfig
from aloader.engine.dispatcher import Dispatcher
from aloader.engine.events import (
    Assign,
    BatchArrived,
    CameToNothing,
    Closed,
    Command,
    Consumed,
    Deliver,
    Discard,
    Draw,
    Drawn,
    Event,
    Exhausted,
    Finish,
    Grant,
    NeedMemory,
    Omit,
    Opened,
    Prepare,
    Raise,
    RanDry,
    Replace,
    Restart,
    TicketFailed,
    WorkerLost,
    WorkerReady,
)
from aloader.engine.statistics import DispatcherStatistics
from aloader.engine.work import Awaited

__all__ = [
    "Assign",
    "Awaited",
    "BatchArrived",
    "CameToNothing",
    "Closed",
    "Command",
    "Consumed",
    "Deliver",
    "Discard",
    "Dispatcher",
    "DispatcherConfig",
    "DispatcherStatistics",
    "Draw",
    "Drawn",
    "Event",
    "Exhausted",
    "Finish",
    "Grant",
    "NeedMemory",
    "Omit",
    "Opened",
    "Prepare",
    "Raise",
    "RanDry",
    "Replace",
    "Restart",
    "TicketFailed",
    "WorkerLost",
    "WorkerReady",
]
