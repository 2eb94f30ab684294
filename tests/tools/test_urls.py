"""Every spelling of a private address is refused, and a name is judged by all of its addresses."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.tools.web import is_public, is_public_url

REFUSED = [
    # loopback and its spellings, names of this machine
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f.0.0.1/",
    "http://127.0.0.1./",
    "http://localhost/",
    "http://１２７.０.０.１/",
    "http://127。0。0。1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://%31%32%37.0.0.1/",
    # private networks, link-local, metadata services
    "http://0/",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://metadata.google.internal/",
    # IPv6: loopback, local, zones, and IPv4 inside
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[64:ff9b::8.8.8.8]/",
    "http://[fe80::1%25eth0]/",
    "http://[2606:4700::1111%25eth0]/",
    # other schemes, credentials, and what is not a URL
    "file:///etc/passwd",
    "ftp://example.com/",
    "//8.8.8.8/",
    "8.8.8.8",
    "",
    "http:///x",
    "https://user:password@8.8.8.8/",
    "https://8.8.8.8@127.0.0.1/",
    "http://8.8.8.8\\@127.0.0.1/",
    "http://8.8.8.8/a b",
    "http://8.8.8.8/\r\nHost: a",
    "http://8.8.8.8:0/",
    "http://8.8.8.8:99999/",
    "http://8.8.8.8:x/",
    "http://[::1/",
    "http://8.8.8.8/a\u2028b",
    "http://1.2.3.4.5/",
    "http://256.1.1.1/",
    "http://a..example/",
    # a reader that is asked for READER/URL would be asked for another host
    "https://8.8.8.8/../10.0.0.1/",
    "https://8.8.8.8/a/%2E./../..",
    "https://8.8.8.8/..?q",
]
ACCEPTED = [
    "http://8.8.8.8/",
    "http://100.63.255.255/",
    "http://172.32.0.1/",
    "http://[2606:4700::1111]/",
    "http://public.example",
    " https://public.example:8443/ä?q=ö%20x#part ",
    "https://public.example/wiki/Rome_(city)...",
    "https://8.8.8.8/a..b/.c/./d?e=..f",
]


@pytest.mark.parametrize("url", REFUSED, ids=ascii)
def test_an_address_outside_the_public_web_is_refused_however_it_is_spelled(url):
    assert not is_public_url(url, look_up=True)


@pytest.mark.parametrize("look_up", [True, False])
def test_a_public_url_is_accepted_and_a_private_number_is_not(names, look_up):
    names["public.example"] = ["93.184.216.34", "2606:4700::1111"]
    for url in ACCEPTED:
        assert is_public_url(url.strip(), look_up)
    for url in (
        "http://10.0.0.1/",
        "http://127.0.0.1./",
        "http://0177.0.0.1./",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::ffff:10.0.0.1]/",
        "http://[::1]/",
        "http://%31%32%37.0.0.1/",
        "ftp://8.8.8.8/",
        "https://me@8.8.8.8/",
    ):
        assert not is_public_url(url, look_up)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "2002:a00:1::",
        "64:ff9b::a00:1",
    ],
)
def test_one_forbidden_address_among_public_ones_refuses_the_name(names, address):
    names["mixed.example"] = ["93.184.216.34", address, "2606:4700::1111"]
    assert not is_public_url("http://mixed.example/", look_up=True)
    assert is_public_url(
        "http://mixed.example/", look_up=False
    )  # a hosted reader looks the name up elsewhere


# This machine, private networks, carrier-grade NAT, link-local, protocol assignments,
# documentation, benchmarks, multicast, reserved; in IPv6 also what has an IPv4 address inside.
BLOCKS = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
    192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24
    203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 ::/16 64:ff9b::/32 100::/64 2001::/32 2001:db8::/32
    2002::/16 3fff::/20 4000::/3 fc00::/7 fe80::/10 fec0::/10 ff00::/8
""".split()


@pytest.mark.parametrize("network", [ip_network(block) for block in BLOCKS], ids=str)
@given(host=st.integers(0, 2**128 - 1))
def test_no_address_of_a_special_block_is_public(network, host):
    assert not is_public(network[host % network.num_addresses])


ANY_URL = st.text(max_size=40) | st.text(max_size=20).map(lambda host: f"http://{host}/")


@given(ANY_URL)
def test_whatever_the_url_is_what_a_look_up_accepts_is_accepted_without_one(url):
    """And nothing raises."""
    assert is_public_url(url, look_up=False) or not is_public_url(url, look_up=True)


@given(st.sampled_from(REFUSED), st.text("/?#a.%", max_size=5))
def test_no_end_of_a_url_makes_a_refused_address_public(url, end):
    assert not is_public_url(url + end, look_up=True)
