"""Every spelling of an address that is not the public web is refused, and names are judged by every address behind them."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.tools.base import ToolFailure
from minvenus.tools.safe_url import check_url, resolve, why_forbidden

REFUSED = [
    # loopback and its spellings
    "http://127.0.0.1/", "http://127.0.0.2:8080/x", "http://127.255.255.254/", "http://127.1/", "http://127.0.1/", "http://2130706433/",
    "http://0177.0.0.1/", "http://0177.0.0.01/", "http://017700000001/", "http://0x7f.0.0.1/", "http://0x7f000001/", "http://0X7F.1/",
    "http://0x7f.0x0.0x0.0x1/", "http://127.0.0.1./", "http://127.000.000.001/", "http://localhost/", "http://LOCALHOST/",
    "http://localhost./", "http://a.localhost/", "http://localhost:6379/", "http://１２７.０.０.１/", "http://127。0。0。1/",
    "http://①②⑦.⓪.⓪.①/", "http://ⓛocalhost/", "http://%31%32%37.0.0.1/", "http://127.0.0.1%2f@example.com/",
    # unspecified
    "http://0.0.0.0/", "http://0/", "http://0x0/", "http://00.00/", "http://[::]/", "http://0.1.2.3/",
    # private, link-local, carrier-grade NAT, benchmarking, documentation, multicast, reserved
    "http://10.0.0.1/", "http://10.255.255.255/", "http://012.0.0.1/", "http://172.16.0.1/", "http://172.31.255.255/",
    "http://192.168.0.1/", "http://0xc0a80001/", "http://3232235521/", "http://169.254.0.1/", "http://100.64.0.1/",
    "http://100.127.255.255/", "http://198.18.0.1/", "http://198.19.255.255/", "http://192.0.2.1/", "http://198.51.100.7/",
    "http://203.0.113.9/", "http://192.0.0.8/", "http://192.88.99.1/", "http://224.0.0.1/", "http://239.255.255.255/",
    "http://240.0.0.1/", "http://255.255.255.255/",
    # metadata services
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/", "http://[fd00:ec2::254]/", "http://100.100.100.200/", "http://168.63.129.16/",
    "http://192.0.0.192/", "http://metadata.google.internal/", "http://printer.local/", "http://router.lan/",
    # IPv6: loopback, local, and IPv4 inside
    "http://[::1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[0000::0001]:80/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://[::ffff:8.8.8.8]/", "http://[::127.0.0.1]/", "http://[::7f00:1]/", "http://[fe80::1]/", "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/", "http://[2606:4700::1111%25eth0]/",
    "http://[fc00::1]/", "http://[fd12:3456::1]/", "http://[ff02::1]/", "http://[2002:7f00:1::]/",
    "http://[2002:c0a8:1::1]/", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::10.0.0.1]/", "http://[64:ff9b:1::1]/",
    "http://[2001:db8::1]/", "http://[2001::1]/", "http://[2001:2::1]/", "http://[100::1]/", "http://[3fff::1]/", "http://[4000::1]/",
    # other schemes, credentials, and what is not a URL
    "file:///etc/passwd", "ftp://example.com/", "gopher://example.com/", "javascript:alert(1)", "data:text/html,x",
    "//example.com/",
    "example.com", "", "http://", "http:///x", "https://user@example.com/", "https://user:password@example.com/",
    "https://example.com@127.0.0.1/", "http://example.com\\@127.0.0.1/", "http://exa mple.com/", "http://example.com/\r\nHost: a",
    "http://example.com/a b", "http://example.com:0/", "http://example.com:99999/", "http://example.com:x/", "http://[::1/",
    "http://[example.com]/", "http://a..example/", "http://-a.example/", "http://a.example-/", "http://exam\u2028ple.com/",
    "http://a/" + "x" * 5000, "http://1.2.3.4.5/", "http://256.1.1.1/", "http://example.1/", "http://example.0x7f/",
]
ACCEPTED = [
    ("http://example.com", ("http", "example.com", 80, "/")),
    (" https://Example.COM./a?b=c#d ", ("https", "example.com", 443, "/a?b=c")),
    ("https://example.com:8443/ä?q=ö%20x", ("https", "example.com", 8443, "/%C3%A4?q=%C3%B6%20x")),
    ("https://münchen.example/", ("https", "xn--mnchen-3ya.example", 443, "/")),
    ("https://en.wikipedia.org/wiki/Rome_(city)", ("https", "en.wikipedia.org", 443, "/wiki/Rome_(city)")),
    ("http://8.8.8.8/", ("http", "8.8.8.8", 80, "/")),
    ("http://100.63.255.255/", ("http", "100.63.255.255", 80, "/")),
    ("http://172.32.0.1/", ("http", "172.32.0.1", 80, "/")),
    ("http://[2606:4700::1111]/", ("http", "2606:4700::1111", 80, "/")),
    ("http://[64:ff9b::8.8.8.8]/", ("http", "64:ff9b::808:808", 80, "/")),
]


@pytest.mark.parametrize("url", REFUSED, ids=ascii)
def test_an_address_outside_the_public_web_is_refused_however_it_is_spelled(url):
    with pytest.raises(ToolFailure, match="not allowed") as caught:
        check_url(url)
    assert caught.value.kind == "refused"


def test_the_table_of_refused_spellings_is_long_and_has_no_repeats():
    assert len(REFUSED) == len(set(REFUSED)) >= 100


@pytest.mark.parametrize(("url", "parts"), ACCEPTED, ids=lambda value: ascii(value)[:60])
def test_a_public_url_is_taken_apart(url, parts):
    target = check_url(url)
    assert (target.scheme, target.host, target.port, target.path) == parts


def test_the_host_header_names_a_port_only_if_it_is_not_the_usual_one():
    assert check_url("https://a.example/").host_header == "a.example"
    assert check_url("http://a.example:443/").host_header == "a.example:443"
    assert check_url("http://[2606:4700::1111]:81/").host_header == "[2606:4700::1111]:81"


FORBIDDEN_ADDRESSES = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1", "2002:a00:1::",
                       "64:ff9b::a00:1"]


@pytest.mark.parametrize("address", FORBIDDEN_ADDRESSES)
def test_one_forbidden_address_among_public_ones_refuses_the_name(names, address):
    names["mixed.example"] = ["93.184.216.34", address, "2606:4700::1111"]
    with pytest.raises(ToolFailure, match="not allowed") as caught:
        resolve(check_url("http://mixed.example/"))
    assert caught.value.kind == "refused"


def test_a_public_name_gives_its_addresses_in_order_without_repeats(names):
    names["public.example"] = ["2606:4700::1111", "93.184.216.34", "93.184.216.34"]
    assert resolve(check_url("http://public.example/")) == [ip_address("2606:4700::1111"), ip_address("93.184.216.34")]


def test_an_unknown_name_is_an_http_error_not_a_crash():
    with pytest.raises(ToolFailure, match="cannot be resolved") as caught:
        resolve(check_url("http://nowhere.example/"))
    assert caught.value.kind == "http"


def test_an_allowed_address_is_allowed_at_its_port_only():
    def allow(address, port):
        return str(address) == "127.0.0.1" and port == 8080
    assert resolve(check_url("http://127.0.0.1:8080/", allow), allow) == [ip_address("127.0.0.1")]
    with pytest.raises(ToolFailure):
        check_url("http://127.0.0.1:8081/", allow)


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_ipv4_address_that_the_standard_library_calls_not_global_is_forbidden_also_inside_ipv6(address):
    if not address.is_global or address.is_multicast:
        assert why_forbidden(address)
        for prefix in (0, 0xFFFF << 32, 0x64_FF9B << 96):
            assert why_forbidden(IPv6Address(prefix | int(address)))
        assert why_forbidden(IPv6Address(0x2002 << 112 | int(address) << 80))


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_an_ipv6_address_that_the_standard_library_calls_not_global_is_forbidden(address):
    if not address.is_global:
        assert why_forbidden(address)


@given(st.text(max_size=40) | st.text(max_size=20).map(lambda host: f"http://{host}/"))
def test_whatever_the_url_is_the_check_answers_or_refuses(url):
    try:
        target = check_url(url)
    except ToolFailure as failure:
        assert failure.kind == "refused"
    else:
        assert target.host.isascii() and target.path.isascii() and target.path.startswith("/")
        assert not set(target.path) & set(" \r\n")
