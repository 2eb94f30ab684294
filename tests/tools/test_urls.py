"""Every spelling of an address that is not the public web is refused, and a name is judged by all of its addresses."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.tools.base import ToolError
from minvenus.tools.web import check_url, is_public

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
ACCEPTED = ["http://8.8.8.8/", "http://100.63.255.255/", "http://172.32.0.1/", "http://[2606:4700::1111]/", "http://[64:ff9b::8.8.8.8]/",
            "http://public.example", " https://public.example:8443/ä?q=ö%20x#part ", "https://public.example/wiki/Rome_(city)"]


def refuses(url, resolve):
    with pytest.raises(ToolError, match="not allowed") as caught:
        check_url(url, resolve)
    return caught.value.kind == "refused"


@pytest.mark.parametrize("url", REFUSED, ids=ascii)
def test_an_address_outside_the_public_web_is_refused_however_it_is_spelled(url):
    assert refuses(url, resolve=True)


@pytest.mark.parametrize("resolve", [True, False])
def test_a_public_url_is_accepted_and_a_private_number_is_not(names, resolve):
    names["public.example"] = ["93.184.216.34", "2606:4700::1111"]
    for url in ACCEPTED:
        check_url(url, resolve)
    for url in ("http://10.0.0.1/", "http://0x7f.1/", "http://[::1]/", "ftp://public.example/", "https://me@public.example/"):
        assert refuses(url, resolve)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1",
                                     "fe80::1%eth0", "2002:a00:1::", "64:ff9b::a00:1"])
def test_one_forbidden_address_among_public_ones_refuses_the_name(names, address):
    names["mixed.example"] = ["93.184.216.34", address, "2606:4700::1111"]
    assert refuses("http://mixed.example/", resolve=True)
    check_url("http://mixed.example/", resolve=False)               # a hosted reader looks the name up elsewhere


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_ipv4_address_that_the_standard_library_calls_not_global_is_forbidden_also_inside_ipv6(address):
    assert not is_public(IPv6Address(int(address))) and not is_public(IPv6Address(0xFFFF << 32 | int(address)))
    assert not is_public(IPv6Address(0x2002 << 112 | int(address) << 80))
    assert is_public(IPv6Address(0x64_FF9B << 96 | int(address))) == is_public(address)
    assert not is_public(address) or (address.is_global and not address.is_multicast)


SPECIAL_V6 = [IPv6Network(network) for network in ("::/16", "100::/64", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
                                                   "2001::/32", "2001:db8::/32", "2002::/16", "3fff::/20", "4000::/3")]


@given(st.sampled_from(SPECIAL_V6), st.integers(0, 2**128 - 1))
def test_no_address_of_a_special_block_of_ipv6_is_public(network, host):
    assert not is_public(IPv6Address(int(network.network_address) | host % network.num_addresses))


@given(st.text(max_size=40) | st.text(max_size=20).map(lambda host: f"http://{host}/"))
def test_whatever_the_url_is_the_check_accepts_or_refuses_it(url):
    try:
        check_url(url, resolve=False)
    except ToolError as error:
        assert error.kind == "refused"
