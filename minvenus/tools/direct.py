"""Fetch one public page over HTTP(S), trusting neither its URL nor its server.

The socket is opened by us to an address that safe_url.py has checked, then http.client talks over it: no second name look-up, no
proxy of the environment, no cookies, no .netrc. TLS still verifies the certificate against the URL's own host. A redirect (at
most 3) is a new URL and goes through all checks again. Everything read is bounded: bytes on the wire and after decompression by
`response_bytes`, time by the deadline, which holds for every single read, so a server that drips a byte a second gains nothing.
"""

import http.client
import io
import os
import socket
import ssl
import zlib
from dataclasses import dataclass
from functools import partial
from urllib.parse import urljoin

import requests

from minvenus.tools.base import ToolFailure
from minvenus.tools.html_text import content_type, decode_page, html_to_text
from minvenus.tools.retry import Again, Limits, check_status, remaining, retrying
from minvenus.tools.safe_url import Address, Allow, Target, check_url, resolve

MAX_REDIRECTS = 3
MAX_ADDRESSES = 3                     # of one host to try
HTML = ("text/html", "application/xhtml+xml")
READABLE = (*HTML, "text/plain", "text/markdown", "text/csv", "text/xml", "application/xml", "application/json")
HEADERS = {"User-Agent": "minvenus/0.1 (research agent)", "Accept": "text/html, text/plain;q=0.9, application/json;q=0.5",
           "Accept-Encoding": "gzip", "Connection": "close"}


@dataclass(frozen=True)
class Reply:
    location: str | None              # where a redirect points
    kind: str                         # content type without parameters
    charset: str | None
    data: bytes
    cut: bool                         # there was more than `response_bytes`


def fetch_text(url: str, limits: Limits, deadline: float, allow: Allow | None = None) -> tuple[str, bool]:
    """The readable text of a page, and whether the page was longer than what was read."""
    for _ in range(MAX_REDIRECTS + 1):
        reply = retrying(partial(get, url, limits, deadline, allow), limits, deadline)
        if reply.location is None:
            text = decode_page(reply.data, reply.charset)
            if reply.kind in HTML:
                title, text = html_to_text(text, url)
                text = f"{title}\n{text}"
            return text.strip(), reply.cut
        try:
            url = urljoin(url, reply.location)
        except ValueError:
            raise ToolFailure("http", "the page redirects to something that is not a URL") from None
    raise ToolFailure("http", f"the page redirects more than {MAX_REDIRECTS} times")


def get(url: str, limits: Limits, deadline: float, allow: Allow | None) -> Reply:
    """One request. Every failure leaves as a ToolFailure with a text of our own."""
    target = check_url(url, allow)
    addresses = resolve(target, allow)
    try:
        sock = connect(target, addresses, limits, deadline)
        try:
            return exchange(sock, target, limits, deadline)
        finally:
            sock.close()
    except TimeoutError:
        raise Again("timeout", "the page did not answer in time") from None
    except ssl.SSLCertVerificationError:
        raise ToolFailure("http", f"the certificate is not valid for {target.host}") from None
    except (OSError, http.client.HTTPException, zlib.error) as error:
        raise ToolFailure("http", f"the page cannot be fetched ({type(error).__name__})") from None


def connect(target: Target, addresses: list[Address], limits: Limits, deadline: float) -> socket.socket:
    """A connection to one of the checked addresses; the name itself is never looked up here."""
    problem: OSError = OSError("no address")
    for address in addresses[:MAX_ADDRESSES]:
        sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
        try:
            sock.settimeout(min(limits.read_seconds, remaining(deadline)))
            sock.connect((str(address), target.port))
            return encrypted(sock, target.host) if target.scheme == "https" else sock
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
                raise
            problem = error
    raise problem


def encrypted(sock: socket.socket, host: str) -> ssl.SSLSocket:
    """TLS with the same certificate authorities as `requests`, verified for the host of the URL, not for the address."""
    context = ssl.create_default_context(cafile=os.environ.get("REQUESTS_CA_BUNDLE") or requests.certs.where())
    return context.wrap_socket(sock, server_hostname=host)


def exchange(sock: socket.socket, target: Target, limits: Limits, deadline: float) -> Reply:
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.auto_open = 0                          # never open a socket of its own, which would look up the name
    connection.sock = TimedSocket(sock, limits.read_seconds, deadline)        # type: ignore[assignment]
    connection.request("GET", target.path, headers=HEADERS | {"Host": target.host_header})
    response = connection.getresponse()
    location = response.getheader("Location")
    if response.status in (301, 302, 303, 307, 308) and location:
        raw = location.encode("latin-1", "replace").decode("utf-8", "replace")       # http.client reads headers as Latin-1
        return Reply(raw.strip().replace(" ", "%20"), "", None, b"", False)
    if response.status in (404, 410):
        raise ToolFailure("empty", f"there is no such page (HTTP status {response.status})")
    check_status(response.status, response.getheader("Retry-After"), "the page")
    kind, charset = content_type(response.getheader("Content-Type"))
    if kind not in READABLE:
        raise ToolFailure("refused", f"the page is {kind[:100] or 'of no stated type'}, only text can be read")
    return Reply(None, kind, charset, *read_body(response, limits.response_bytes))


def read_body(response: http.client.HTTPResponse, limit: int) -> tuple[bytes, bool]:
    """The body up to `limit` bytes, unzipped, and whether there is more. A bomb is unzipped only as far as the limit."""
    encoding = response.getheader("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise ToolFailure("refused", f"the page is encoded as {encoding[:40]!r}, only gzip can be read")
    unzip = zlib.decompressobj(wbits=47) if encoding not in ("identity", "") else None         # 47: gzip or zlib
    data, wire = bytearray(), 0
    while block := response.read(min(65536, limit)):
        wire += len(block)
        data += unzip.decompress(block, limit + 1 - len(data)) if unzip else block
        if len(data) > limit or wire > limit:
            return bytes(data[:limit]), True
    return bytes(data), False


class TimedSocket:
    """What http.client needs of a socket, with a deadline over all reads together; a socket's own timeout is per read."""

    def __init__(self, sock: socket.socket, read_seconds: float, deadline: float):
        self.sock, self.read_seconds, self.deadline = sock, read_seconds, deadline

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(TimedReader(self))

    def close(self) -> None:
        """Nothing: http.client lets go of its socket before the body is read; get() closes it."""


class TimedReader(io.RawIOBase):                      # BufferedReader takes nothing else
    def __init__(self, timed: TimedSocket):
        self.timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self.timed.sock.settimeout(min(self.timed.read_seconds, remaining(self.timed.deadline)))
        return self.timed.sock.recv_into(buffer)
