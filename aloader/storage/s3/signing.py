"""Signatures of GET requests, as of AWS Signature Version 4 with an unsigned payload. Pure: the time is an argument.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html

What is the same for a second is made once a second (the date and all text around it), and what is the same for a day
once a day (the key that signs). What is left for a request is one hash and one HMAC of some hundred bytes.

`Range` and `If-Match` need no signature; every header that begins with `x-amz-` does. `x-amz-checksum-mode` asks for
the checksums that the object was stored with: not of every server, since some refuse what they do not know.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

#: What stays as it is in a path; all else is percent-encoded, as UTF-8.
UNQUOTED: Final = "/-._~"

#: Also for who signs nothing.
CHECKSUM_MODE: Final = "x-amz-checksum-mode: ENABLED\r\n"


class BadKeys(ValueError):  # noqa: N818
    """These can be nobody's."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What requests are signed with. Its `repr` shows nothing of it. `BadKeys` where there is white space in it:
    mostly the end of the line of a file, as secrets are mounted. Servers would say that the request is bad, or the
    signature.
    """

    access: str
    secret: str
    token: str = ""

    def __post_init__(self) -> None:
        names = {"access key": self.access, "secret key": self.secret, "session token": self.token}
        for name, value in names.items():
            if re.search(r"\s", value):
                raise BadKeys(f"the {name} has white space in it, or the end of a line: strip() it where it is read")

    def __repr__(self) -> str:
        return "Keys(…)"


def encoded(key: str) -> str:
    """A key as a part of a path."""
    return quote(key, safe=UNQUOTED)


class Signer:
    """Signs GETs of one host in one region."""

    def __init__(self, authority: str, region: str, checksums: bool = True) -> None:
        self._authority = authority
        self._region = region
        self._checksums = checksums
        self._keys = Keys("", "")
        self._day = ""
        self._second = -1
        self._signing_key = b""
        # The texts of this second: what stands around the path in the request as it is signed, what stands before its
        # hash in the text to be signed, and what stands before the signature in the headers.
        self._behind_path = self._before_hash = self._before_signature = ""

    def headers(self, path: str, keys: Keys, now: float) -> str:
        """The headers that sign a GET of this path (encoded, without a query), each with its line end."""
        second = int(now)
        if second != self._second or keys is not self._keys:
            self._tick(second, keys)
        request = f"GET\n{path}{self._behind_path}".encode()
        text = (self._before_hash + hashlib.sha256(request).hexdigest()).encode()
        signature = hmac.digest(self._signing_key, text, "sha256").hex()
        return f"{self._before_signature}{signature}\r\n"

    def _tick(self, second: int, keys: Keys) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = stamp[:8]
        scope = f"{day}/{self._region}/s3/aws4_request"
        if day != self._day or keys is not self._keys:
            self._signing_key = f"AWS4{keys.secret}".encode()
            for part in scope.split("/"):
                self._signing_key = hmac.digest(self._signing_key, part.encode(), "sha256")
        headers = {"x-amz-checksum-mode": "ENABLED"} if self._checksums else {}
        headers |= {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": stamp}
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        names = ";".join(["host", *headers])
        signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self._behind_path = f"\n\nhost:{self._authority}\n{signed}\n{names}\nUNSIGNED-PAYLOAD"
        self._before_hash = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n"
        sent = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        credential = f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}"
        self._before_signature = f"{sent}Authorization: {credential}, SignedHeaders={names}, Signature="
        self._keys, self._day, self._second = keys, day, second
