"""How far this machine's clock is from a store's: S3 refuses requests that were signed more than 15 minutes away."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from aloader.checkup.report import Check, ok, problem, warning

if TYPE_CHECKING:
    from aloader.storage.base import Store

#: Seconds that the server has to answer.
PATIENCE: Final = 4.0

#: Seconds of difference at which S3 refuses (15 minutes), and at which it is time to say so.
REFUSED: Final = 900.0
NOTABLE: Final = 60.0


def measure(place: str | Store) -> float | None:
    """Seconds that this machine is ahead of the server of a place. None: it does not say, or none can be asked."""
    server = server_of(place) if isinstance(place, str) else _server_of_store(place)
    if server is None:
        return None
    began = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(server, method="HEAD"), timeout=PATIENCE) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as refusal:  # which has a date as well
        date = refusal.headers.get("Date")
        refusal.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None  # that it cannot be reached is found elsewhere
    return None if date is None else _ahead(date, began, time.time())


def judge(ahead: float) -> Check:
    where = "ahead of" if ahead > 0 else "behind"
    text = f"this machine is {abs(ahead):,.0f} s {where} the store" if abs(ahead) >= 2 else "the same as here"
    remedy = "set the clock: NTP (timedatectl set-ntp true; chronyc makestep); in a container, that of its host"
    if abs(ahead) >= REFUSED:
        return problem("store's clock", f"{text}: S3 refuses signatures from {REFUSED:.0f} s on", remedy)
    if abs(ahead) >= NOTABLE:
        return warning("store's clock", f"{text}: S3 refuses signatures from {REFUSED:.0f} s on", remedy)
    return ok("store's clock", text)


def server_of(url: str) -> str | None:
    """The address of whoever can be asked for the time, without anything secret in it."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    if parts.scheme != "s3":
        return None
    return parse_qs(parts.query).get("endpoint_url", [""])[0] or _configured() or "https://s3.amazonaws.com/"


def _configured() -> str | None:
    from aloader.storage.s3.configured import configured_endpoint

    try:
        return configured_endpoint()
    except ValueError:  # a configuration that cannot be read: the store says so
        return None


def _server_of_store(store: Store) -> str | None:
    from aloader.storage import S3Store
    from aloader.storage.wrappers.wrapper import innermost

    inner = innermost(store)
    if not isinstance(inner, S3Store):
        return None
    return server_of(f"s3://?endpoint_url={inner.endpoint}" if "://" in inner.endpoint else "s3://")


def _ahead(date: str, began: float, ended: float) -> float | None:
    """Half way of the question and the answer, against a date in whole seconds (which are cut, not rounded)."""
    try:
        theirs = parsedate_to_datetime(date).timestamp() + 0.5
    except ValueError:
        return None
    return (began + ended) / 2 - theirs
