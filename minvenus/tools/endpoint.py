"""One request to a service that the user configured (search, reader, extraction), with its key kept out of sight.

Addresses and keys come from the environment and are read at the moment of the call, so no object, config or repr holds them. No
exception text of the HTTP library is passed on, because it may repeat a header or a URL; errors name the variable instead.
`requests` honours the proxies of the environment here: these are the user's own services. A redirect is an error, since it would
carry the key to another host. The deadline is kept between reads of the body; only response headers that arrive
byte by byte could stretch it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

import requests

from minvenus.config import ConfigError
from minvenus.tools.base import ToolFailure
from minvenus.tools.html_text import content_type
from minvenus.tools.retry import Again, Limits, check_status, remaining, retrying


def setting(variable: str) -> str:
    """A value of the environment, "" if it is not set."""
    return os.environ.get(variable, "").strip()


@dataclass(frozen=True)
class Service:
    """Names of things, never their values."""

    name: str                 # in words, for errors
    url_variable: str         # the environment variable of its address
    key_variable: str         # and of its key
    url_default: str = ""
    key_header: str = "Authorization"
    kinds: tuple[str, ...] = ("application/json", "text/plain")         # content types that its replies may have

    def url(self) -> str:
        url = setting(self.url_variable) or self.url_default
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{self.url_variable} must begin with http:// or https://")
        return url.rstrip("/")

    def authorise(self) -> Callable:
        """Sets the key's header on a prepared request. As an `auth` it also keeps `requests` from reading a .netrc."""
        key = setting(self.key_variable)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"{self.key_variable} has characters that no key has: check for line breaks and quotes")

        def add_key(request):
            if key:
                request.headers[self.key_header] = f"Bearer {key}" if self.key_header == "Authorization" else key
            return request
        return add_key


def ask(service: Service, path: str, limits: Limits, deadline: float, body: dict | None = None) -> bytes:
    """POST the body as JSON, or GET without one; the bytes of a 2xx reply."""
    url, auth = service.url() + path, service.authorise()
    return retrying(lambda: ask_once(service, url, auth, limits, deadline, body), limits, deadline)


def ask_once(service: Service, url: str, auth: Callable, limits: Limits, deadline: float, body: dict | None) -> bytes:
    wait = min(limits.read_seconds, remaining(deadline))
    try:
        with requests.Session() as session, session.request(
                "GET" if body is None else "POST", url, json=body, auth=auth, stream=True, allow_redirects=False,
                timeout=(wait, wait)) as response:
            if response.status_code in (401, 403):
                raise ToolFailure("http", f"the {service.name} refused the key (HTTP status {response.status_code}): "
                                          f"check {service.key_variable}")
            check_status(response.status_code, response.headers.get("Retry-After"), f"the {service.name}")
            kind, _ = content_type(response.headers.get("Content-Type"))
            if kind not in service.kinds:
                raise ToolFailure("refused", f"the {service.name} sent {kind[:100] or 'no content type'}, not {service.kinds[0]}")
            return read_reply(response, service, limits, deadline)
    except ToolFailure:
        raise
    except Exception as error:                        # of requests, or of the library below it, which we do not import
        timeout, kind = "timeout" in type(error).__name__.lower(), type(error).__name__
    if timeout:                                       # raised out here, so that the original is not even chained
        raise Again("timeout", f"the {service.name} did not answer in time")
    raise ToolFailure("http", f"the {service.name} cannot be reached ({kind}): check {service.url_variable}")


def read_reply(response: requests.Response, service: Service, limits: Limits, deadline: float) -> bytes:
    data = bytearray()
    while block := response.raw.read1(65536, decode_content=True):       # whatever is there, so that the deadline is seen
        data += block
        if len(data) > limits.response_bytes:
            raise ToolFailure("http", f"the {service.name} sent more than {limits.response_bytes:,} bytes")
        remaining(deadline)
    return bytes(data)


def as_json(data: bytes, service: Service) -> dict:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ToolFailure("http", f"the {service.name} did not answer with a JSON object")
    return value
