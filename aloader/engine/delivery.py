"""In which order outcomes leave: in the order of their seqs, or as they land. Nothing about workers may enter here."""

from __future__ import annotations

from aloader.engine.events import Command, Deliver, Discard, Omit, Raise

Outcome = Deliver | Raise | Omit


class Delivery:
    """What has landed and waits for its turn, and what has left and was not consumed yet; with the bytes of each.

    A seq that is skipped lands as None: nothing leaves in its place.
    """

    __slots__ = ("blocked", "in_order", "landed", "left", "next", "passed", "unconsumed")

    def __init__(self, *, in_order: bool, first: int = 0) -> None:
        self.in_order = in_order
        self.landed: dict[int, tuple[Outcome, int] | None] = {}
        self.unconsumed: dict[int, int] = {}
        self.next = first  # the lowest seq that has not left; stays the first without order
        self.left = 0  # how many have
        self.blocked = 0  # how many outcomes wait for one before them
        self.passed = 0  # how many were skipped in their turn

    def land(self, seq: int, outcome: Outcome, reserved: int, commands: list[Command]) -> None:
        """A ticket has its outcome: let it leave, and what waited for it, or keep it for its turn."""
        if not self.in_order:
            self._leave(seq, outcome, reserved, commands)
            return
        self.landed[seq] = outcome, reserved
        self.blocked += 1
        self._advance(commands)

    def skip(self, seq: int, commands: list[Command]) -> None:
        """Nothing will ever come under `seq`: whoever waits for it goes on with the next."""
        if not self.in_order:
            self.passed += 1
            return
        self.landed[seq] = None
        self._advance(commands)

    def _advance(self, commands: list[Command]) -> None:
        landed = self.landed
        while self.next in landed:
            entry = landed.pop(self.next)
            if entry is None:
                self.passed += 1
            else:
                self.blocked -= 1
                self._leave(self.next, *entry, commands)
            self.next += 1

    def _leave(self, seq: int, outcome: Outcome, reserved: int, commands: list[Command]) -> None:
        self.left += 1
        self.unconsumed[seq] = reserved
        commands.append(outcome)

    def consume(self, seq: int) -> int:
        """The user has it: the bytes that it gives back."""
        reserved = self.unconsumed.pop(seq, None)
        assert reserved is not None, f"{seq} was consumed without being delivered, or twice"
        return reserved

    def withdraw(self, commands: list[Command]) -> None:
        """Nothing leaves any more. What has left belongs to the driver, which gives it back."""
        landed = (entry[0] for entry in self.landed.values() if entry is not None)
        commands += [Discard(outcome.batch) for outcome in landed if isinstance(outcome, Deliver)]
        self.landed.clear()
        self.blocked = 0
