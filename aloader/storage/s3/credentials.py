"""What requests are signed with: asked for again while the program runs, since most credentials live for an hour.

aiobotocore finds them (arguments, environment, profiles, the machine's or container's role) and knows when they must
be renewed. It is asked at most once a second, by one task for all; the others go on with what they have meanwhile.

A server may refuse what still looks good from here: clocks differ, keys are rotated by hand. `renew` then looks
through the whole chain anew, again once for all who were refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aloader.storage.s3.signing import Keys

#: Seconds for which credentials are used before aiobotocore is asked whether they still hold.
ASKED_EVERY: Final = 1.0


class Given:
    """Credentials that were passed as arguments: they stay as they are."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def current(self, now: float) -> Keys | None:
        return self._keys

    async def get(self, now: float) -> Keys:
        return self._keys


class Credentials:
    """Credentials that are looked for, of one store on one loop.

    `find` looks through the chain and returns aiobotocore's object for what it finds, or None. `now` is the time of
    day, in seconds.
    """

    def __init__(self, find: Callable[[], Awaitable[Any]]) -> None:
        self._find = find
        self._found: Any = None
        self._keys: Keys | None = None
        self._until = 0.0
        self._renewed = -ASKED_EVERY
        self._attempts = 0
        self._failure: Exception | None = None
        self._asking = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Credentials({'found' if self._keys else 'not looked for yet'})"

    def current(self, now: float) -> Keys | None:
        """The keys, if they need not be asked for."""
        return self._keys if now < self._until else None

    async def get(self, now: float) -> Keys:
        """The keys. botocore's `NoCredentialsError` if there are none, or its other errors."""
        if self._keys is None or not self._asking.locked():
            await self._once(lambda: self._ask(now))
        assert self._keys is not None
        return self._keys

    async def renew(self, refused: Keys | None, now: float) -> bool:
        """These keys were refused: look for others, unless that has been done since. (None: whatever there was.)
        Whether there are others now, as far as that is known."""
        if refused in (None, self._keys) and now >= self._renewed + ASKED_EVERY:
            await self._once(lambda: self._look(now))
        return refused is None or refused != self._keys

    async def _once(self, act: Callable[[], Awaitable[None]]) -> None:
        """One task acts for all that come while it does; a failure is theirs too. If it is cancelled, the next acts."""
        before = self._attempts
        async with self._asking:
            if self._attempts == before:
                try:
                    await act()
                    self._failure = None
                except Exception as error:
                    self._failure = error
                self._attempts += 1
        if self._failure is not None:
            raise self._failure

    async def _look(self, now: float) -> None:
        self._found = await self._find()
        self._renewed = now
        await self._take(now)

    async def _ask(self, now: float) -> None:
        if self._found is None:
            self._found = await self._find()
        await self._take(now)

    async def _take(self, now: float) -> None:
        if self._found is None:
            from botocore.exceptions import NoCredentialsError

            raise NoCredentialsError()
        self._until = now + ASKED_EVERY  # if it fails, what there is goes on being used, and is asked for in a second
        frozen = await self._found.get_frozen_credentials()
        keys = Keys(frozen.access_key, frozen.secret_key, frozen.token or "")
        if keys != self._keys:  # the signer goes by identity
            self._keys = keys
