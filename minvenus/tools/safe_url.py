"""Which URLs the agent may be sent to: the public web and nothing else.

The model chooses URLs, and pages choose where they redirect, so a URL is an outsider's wish to have this machine connect
somewhere (server-side request forgery). Three rules:

    check_url       the spelling: http or https, no user name, one way to write a host. Numbers that old resolvers read as
                    addresses (2130706433, 0x7f.1, 0177.0.0.1, 127.1) are refused whatever they mean.
    resolve         every address behind a name must be public; one that is not refuses the name. The caller must connect to the
                    addresses returned, never to the name: a second look-up could answer differently (DNS rebinding).
    why_forbidden   the table of addresses.

Knows no HTTP. The system resolver has no deadline of its own that we could set; its configuration bounds it (some seconds).
"""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, urlsplit

from minvenus.tools.base import ToolFailure

Address = IPv4Address | IPv6Address
Allow = Callable[[Address, int], bool]        # (address, port) -> may be reached although it is not public

# IANA's special-purpose blocks, and the fixed addresses of cloud hosts that lie outside them.
FORBIDDEN_V4 = {IPv4Network(network): what for network, what in {
    "0.0.0.0/8": "unspecified", "10.0.0.0/8": "private", "100.64.0.0/10": "carrier-grade NAT", "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local or metadata", "172.16.0.0/12": "private", "192.0.0.0/24": "protocol assignment",
    "192.0.2.0/24": "documentation", "192.88.99.0/24": "6to4 relay", "192.168.0.0/16": "private", "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation", "203.0.113.0/24": "documentation", "224.0.0.0/4": "multicast", "240.0.0.0/4": "reserved",
    "168.63.129.16/32": "metadata"}.items()}
# Of IPv6 only 2000::/3 is public, without these.
PUBLIC_V6 = IPv6Network("2000::/3")
FORBIDDEN_V6 = {IPv6Network(network): what for network, what in {
    "2001::/23": "protocol assignment (Teredo, benchmarking)", "2001:db8::/32": "documentation", "2002::/16": "6to4",
    "3fff::/20": "documentation"}.items()}
NAT64 = IPv6Network("64:ff9b::/96")           # an IPv6-only network writes every IPv4 address like this: look at the one inside
LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa", "lan")
HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
NUMERIC = re.compile(r"(.*\.)?(0x[0-9a-f]*|[0-9]+)")         # a host whose last label is a number is an address to some resolver
MAX_LENGTH = 4096
URL_CHARACTERS = "/%:@!$&'()*+,;=~?[]|"       # stay as they are; everything else outside ASCII letters and digits is encoded


@dataclass(frozen=True)
class Target:
    """A URL whose spelling has been checked."""

    scheme: str
    host: str            # lower-case ASCII, IPv6 without brackets
    port: int
    path: str            # with the query, percent-encoded; begins with "/"

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"


def refuse(reason: str) -> ToolFailure:
    return ToolFailure("refused", f"this address is not allowed: {reason}")


def check_url(url: str, allow: Allow | None = None) -> Target:
    """The parts of a URL that may be visited as far as its spelling tells; raises ToolFailure("refused")."""
    if len(url) > MAX_LENGTH:
        raise refuse(f"it has {len(url):,} characters, more than {MAX_LENGTH:,}")
    if re.search(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]", url.strip()):
        raise refuse("spaces, control characters and backslashes must be percent-encoded")
    try:
        parts = urlsplit(url.strip())
        scheme, name, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError:
        raise refuse("it is not a URL") from None
    if scheme not in ("http", "https"):
        raise refuse("it must begin with http:// or https://")
    if "@" in parts.netloc:
        raise refuse("no user name or password in a URL")
    if port == 0:
        raise refuse("there is no port 0")
    host = check_host(name)
    port = port or {"http": 80, "https": 443}[scheme]
    literal = as_address(host)
    if literal is not None:
        check_address(literal, port, allow)
    query = "?" + parts.query if parts.query else ""
    return Target(scheme, host, port, quote((parts.path or "/") + query, safe=URL_CHARACTERS))


def check_host(name: str) -> str:
    """The one canonical spelling of a host, or a refusal."""
    if ":" in name:                                           # in brackets, or urlsplit would have taken it for a port
        address = as_address(name)
        if address is None or "%" in name:
            raise refuse("it is not a valid IPv6 address")
        return str(address)
    try:
        host = name.encode("idna").decode("ascii").lower().rstrip(".")       # full-width digits and dots become plain ones
    except UnicodeError:
        raise refuse("the host name is not valid") from None
    if not HOST.fullmatch(host):
        raise refuse("the host name is not valid")
    if NUMERIC.fullmatch(host) and as_address(host) is None:
        raise refuse("write an IPv4 address as four plain decimal numbers")
    if any(host == local or host.endswith("." + local) for local in LOCAL_NAMES):
        raise refuse("it is a local name")
    return host


def as_address(host: str) -> Address | None:
    try:
        return ip_address(host)                               # strict: four decimal numbers without leading zeros
    except ValueError:
        return None


def resolve(target: Target, allow: Allow | None = None) -> list[Address]:
    """Every address of the host, in the resolver's order, all of them checked."""
    literal = as_address(target.host)
    if literal is not None:
        check_address(literal, target.port, allow)
        return [literal]
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailure("http", "the host name cannot be resolved") from None
    addresses = list(dict.fromkeys(ip_address(str(entry[4][0]).split("%")[0]) for entry in found))
    if not addresses:
        raise ToolFailure("http", "the host name has no address")
    for address in addresses:
        check_address(address, target.port, allow)
    return addresses


def check_address(address: Address, port: int, allow: Allow | None) -> None:
    reason = why_forbidden(address)
    if reason is not None and not (allow is not None and allow(address, port)):
        raise refuse(f"it is {reason}, only the public web can be visited")


def why_forbidden(address: Address) -> str | None:
    """What kind of non-public address it is; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in FORBIDDEN_V4.items() if address in network), None)
    if address in NAT64:
        return why_forbidden(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address not in PUBLIC_V6:                              # ::1, ::ffff:1.2.3.4, ::1.2.3.4, fe80::, fc00::, ff00:: ...
        return "not in the public range of IPv6"
    return next((what for network, what in FORBIDDEN_V6.items() if address in network), None)
