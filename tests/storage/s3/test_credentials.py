"""Credentials that change while the program runs: asked for by one task for all, and never shown."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

from aloader.storage.s3.credentials import Credentials
from aloader.storage.s3.signing import Keys
from aloader.testing.simloop import simulate


class Frozen(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None


class Source:
    """A chain of places that gives new keys each time it is looked through, or each time they are asked for."""

    def __init__(self, failures: int = 0, nothing: bool = False, moving: bool = False) -> None:
        self.failures = failures
        self.nothing = nothing
        self.moving = moving
        self.looked = 0
        self.asked = 0

    async def find(self) -> Any:
        self.looked += 1
        looked = self.looked
        await asyncio.sleep(1)  # sleep: the time that a role's server takes
        return None if self.nothing else _Found(self, looked)


class _Found:
    def __init__(self, source: Source, looked: int) -> None:
        self._source = source
        self._looked = looked

    async def get_frozen_credentials(self) -> Frozen:
        self._source.asked += 1
        asked = self._source.asked
        await asyncio.sleep(1)  # sleep: the time that a role's server takes
        if self._source.failures:
            self._source.failures -= 1
            raise CredentialRetrievalError(provider="test", error_msg="down")
        return Frozen(f"access{asked if self._source.moving else self._looked}", "secret", None)


def test_one_task_asks_for_all() -> None:
    async def main() -> None:
        source = Source()
        credentials = Credentials(source.find)
        assert credentials.current(100) is None
        keys = await asyncio.gather(*(credentials.get(100) for _ in range(50)))
        assert set(keys) == {Keys("access1", "secret")}
        assert (source.looked, source.asked) == (1, 1)
        assert credentials.current(100.9) is keys[0]

    simulate(main)


def test_they_are_asked_for_again_after_a_second_while_the_others_go_on() -> None:
    async def main() -> None:
        source = Source(moving=True)
        credentials = Credentials(source.find)
        first = await credentials.get(100)
        assert credentials.current(101) is None
        asking = asyncio.ensure_future(credentials.get(101))
        await asyncio.sleep(0)
        assert await credentials.get(101) is first
        assert await asking == Keys("access2", "secret")
        assert (source.looked, source.asked) == (1, 2)

    simulate(main, seed=None)


def test_the_same_keys_stay_the_same_object() -> None:
    async def main() -> None:
        credentials = Credentials(Source().find)
        first = await credentials.get(100)
        assert await credentials.get(200) is first

    simulate(main)


def test_refused_keys_are_looked_for_anew_once_for_all() -> None:
    async def main() -> None:
        source = Source()
        credentials = Credentials(source.find)
        refused = await credentials.get(100)
        await asyncio.gather(*(credentials.renew(refused, 150) for _ in range(50)))
        assert source.looked == 2
        await credentials.renew(refused, 160)  # a late refusal of what has been replaced
        assert source.looked == 2
        assert credentials.current(150) == Keys("access2", "secret")
        await credentials.renew(Keys("access2", "secret"), 150.5)  # not twice in a second
        assert source.looked == 2

    simulate(main)


def test_a_failure_is_that_of_all_who_wait_and_the_next_asks_again() -> None:
    async def main() -> None:
        source = Source(failures=1)
        credentials = Credentials(source.find)
        failed = await asyncio.gather(*(credentials.get(100) for _ in range(9)), return_exceptions=True)
        assert {type(each) for each in failed} == {CredentialRetrievalError}
        assert source.asked == 1
        assert await credentials.get(101) == Keys("access1", "secret")

    simulate(main)


def test_what_there_is_goes_on_being_used_when_a_renewal_fails() -> None:
    async def main() -> None:
        source = Source()
        credentials = Credentials(source.find)
        keys = await credentials.get(100)
        source.failures = 1
        with pytest.raises(CredentialRetrievalError):
            await credentials.get(101)
        assert credentials.current(101.5) is keys

    simulate(main)


def test_a_cancelled_task_leaves_the_asking_to_the_next() -> None:
    async def main() -> None:
        credentials = Credentials(Source().find)
        first, second = (asyncio.ensure_future(credentials.get(100)) for _ in range(2))
        await asyncio.sleep(0.5)  # sleep: into the midst of the first one's asking, in virtual time
        first.cancel()
        assert await second == Keys("access2", "secret")
        await asyncio.wait([first])

    simulate(main, seed=None)


def test_having_none_is_an_error() -> None:
    async def main() -> None:
        with pytest.raises(NoCredentialsError):
            await Credentials(Source(nothing=True).find).get(100)

    simulate(main)


def test_they_are_not_shown() -> None:
    async def main() -> None:
        credentials = Credentials(Source().find)
        await credentials.get(100)
        assert repr(credentials) == "Credentials(found)"

    simulate(main)
