"""Access checks for HTTP requests: allowed hosts and allowed origins."""

from __future__ import annotations

import pytest

from cordwood.decide.web import AllowedHosts, check_access, host_of

HOSTS = AllowedHosts(["broker.example.org", " Other. ", "*.svc.local", ""])


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]", "[::1]:8080", "[fe80::1]:1"),
        *("localhost", "LOCALHOST:8080", "localhost.", "broker.example.org", "other:1"),
        *("a.svc.local", "a.b.svc.local:8080"),
    ],
)
def test_addresses_and_the_names_of_the_broker_are_its_host(host):
    """IP addresses, localhost and configured names are allowed hosts."""
    assert HOSTS.allow(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "svc.local"),
        *("evilsvc.local", "", ":80", "a b", "user@localhost", "localhost:port", "[::1"),
        *("localhost/", "127.0.0.1/..", "1.2.3", "0x7f000001", "2130706433", "localhost:99999"),
    ],
)
def test_any_other_host_is_foreign(host):
    """Any other name and any malformed host are refused, against DNS rebinding."""
    assert not HOSTS.allow(host)


def test_a_star_allows_any_name():
    """A star allows any well-formed name, for brokers behind a proxy that checks hosts."""
    assert AllowedHosts(["*"]).allow("anything.example")
    assert not AllowedHosts(["*"]).allow("a b")


def test_host_of_an_authority_is_its_name():
    """``host_of`` returns the name in lower case, without port and final dot."""
    assert host_of("A.Example.:80") == "a.example"
    assert host_of("[::1]:80") == "::1"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, None),
        ({"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"}, None),
        ({"sec-fetch-site": "none"}, None),
        ({"origin": "http://evil.example"}, "FOREIGN_ORIGIN"),
        ({"origin": "http://localhost:3000"}, "FOREIGN_ORIGIN"),
        ({"origin": "null"}, "FOREIGN_ORIGIN"),
        ({"origin": ""}, "FOREIGN_ORIGIN"),
        ({"origin": "file://localhost:8080"}, "FOREIGN_ORIGIN"),
        ({"sec-fetch-site": "cross-site"}, "FOREIGN_ORIGIN"),
        ({"sec-fetch-site": "same-site"}, "FOREIGN_ORIGIN"),
        ({"host": "evil.example"}, "FOREIGN_HOST"),
    ],
)
def test_another_sites_page_may_not_use_the_api(method, headers, refused):
    """Requests from another site's page to the API are refused, whatever the method."""
    options = {"host": "localhost:8080", **headers}
    found = check_access(method, "/api/topics", options, HOSTS)
    assert (found.name if found else None) == refused


def test_a_link_from_another_site_may_lead_to_a_page_that_is_not_the_api():
    """A link from another site may open a page outside the API with GET.

    Foreign hosts and foreign origins stay refused.
    """
    options = {"host": "localhost", "sec-fetch-site": "cross-site"}
    assert check_access("GET", "/metrics", options, HOSTS) is None
    assert check_access("POST", "/metrics", options, HOSTS) is not None
    asked = {**options, "origin": "http://a.example"}
    assert check_access("GET", "/metrics", asked, HOSTS).name == "FOREIGN_ORIGIN"
    assert check_access("GET", "/metrics", {"host": "evil.example"}, HOSTS) is not None


def test_who_sends_no_host_is_no_browser():
    """A request without a Host header is allowed, such as an HTTP/1.0 health check."""
    assert check_access("GET", "/api/topics", {}, HOSTS) is None
