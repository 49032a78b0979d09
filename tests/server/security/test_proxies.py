"""Who calls through a proxy: only what a trusted one has seen is believed."""

from __future__ import annotations

import pytest

from clew.server.security.proxies import TrustedProxies
from clew.server.settings import SettingsError, load_settings


@pytest.mark.parametrize(
    ("address", "forwarded_for", "expected"),
    [
        ("10.0.0.1:4711", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1:4711", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1:4711", "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1:4711", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1:4711", "", "10.0.0.1:4711"),
        ("10.0.0.1:4711", " , ", "10.0.0.1:4711"),
        ("192.0.2.1:4711", "203.0.113.9", "192.0.2.1:4711"),
        ("[fd00::1]:4711", "2001:db8::9", "2001:db8::9"),
        ("fd00::1", "2001:db8::9", "2001:db8::9"),
        ("unix", "203.0.113.9", "unix"),
    ],
)
def test_the_caller_is_the_first_that_no_trusted_proxy_is(address: str, forwarded_for: str, expected: str) -> None:
    proxies = TrustedProxies(("10.0.0.0/8", "fd00::1"))
    assert proxies.caller(address, forwarded_for) == expected


def test_nobody_is_believed_without_the_setting() -> None:
    assert TrustedProxies().caller("127.0.0.1:1", "203.0.113.9") == "127.0.0.1:1"


def test_a_setting_that_is_no_address_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'proxy\.example' in trusted_proxies is neither an address nor a network"):
        load_settings(flags={"trusted_proxies": ("proxy.example",)})


def test_the_setting_can_be_given_as_json_in_the_environment() -> None:
    settings = load_settings(environment={"CLEW_SERVER_TRUSTED_PROXIES": '["10.0.0.0/8"]'})
    assert settings.trusted_proxies == ("10.0.0.0/8",)
