"""Tokens of an identity provider: what is accepted, each way to be refused, keys that rotate, claims to grants."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from clew.model.access import Permission
from clew.model.rejection import RejectionCode
from clew.server.security import jwks as jwks_module
from clew.server.security.jwks import BYTES_MAX, Jwks, check_url, fetch_url
from clew.server.security.principal import Credentials, Principal
from clew.server.security.tokens import TokenAuthenticator, TokenSettings
from clew.service.errors import RPCError
from clew.testing import ManualClock

ISSUER = "https://id.example"
SETTINGS = TokenSettings(
    issuer=ISSUER,
    audience=("clew",),
    jwks_url=f"{ISSUER}/keys",
    algorithms=("RS256", "PS256", "ES256", "EdDSA"),
    grants={"oncall": ("*:operator",), "payments": ("payments:client", "payments:worker")},
)


@functools.cache
def rsa_key(number: int, bits: int = 2_048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, bits)


@functools.cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def ed_key() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public(key: Any, kid: str, **fields: Any) -> dict[str, Any]:
    algorithm: Any = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }[next(base for base in (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey)
           if isinstance(key, base))]  # fmt: skip
    data: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**data, "kid": kid, **fields}


class Issuer:
    """An identity provider whose keys and answers the test sets."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [public(rsa_key(1), "k1"), public(ec_key(), "e1"), public(ed_key(), "d1")]
        self.fetched: list[str] = []
        self.error: Exception | None = None
        self.body: bytes | None = None

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if self.body is not None:
            return self.body
        if url.endswith("/.well-known/openid-configuration"):
            return json.dumps({"issuer": ISSUER, "jwks_uri": f"{ISSUER}/found"}).encode()
        return json.dumps({"keys": self.keys}).encode()


class Door:
    def __init__(self, **changes: Any) -> None:
        self.manual = ManualClock()
        self.clock = self.manual.attach(asyncio.get_running_loop())
        self.issuer = Issuer()
        fields = {name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__}
        self.authenticator = TokenAuthenticator(
            TokenSettings(**{**fields, **changes}), self.clock, fetch=self.issuer.fetch
        )

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = self.clock.now().timestamp()
        values = {
            "iss": ISSUER, "aud": "clew", "sub": "ada", "exp": now + 600, "iat": now, "permissions": ["oncall"],
            **changes,
        }  # fmt: skip
        return {name: value for name, value in values.items() if value is not None}

    def token(self, key: Any = None, kid: str = "k1", alg: str = "RS256", headers: Any = None, **changes: Any) -> str:
        signer = key if key is not None else rsa_key(1)
        return jwt.encode(self.claims(**changes), signer, alg, headers={"kid": kid, **(headers or {})})

    async def knock(self, token: str) -> Principal | None:
        return await asyncio.wait_for(self.authenticator.authenticate(Credentials(bearer=token)), 5)

    async def refuses(self, token: str) -> None:
        with pytest.raises(RPCError) as refused:
            await self.knock(token)
        assert refused.value.code is RejectionCode.UNAUTHENTICATED
        assert token not in refused.value.message


async def test_a_good_token_of_each_algorithm_is_known() -> None:
    door = Door()
    for key, kid, alg in (
        (rsa_key(1), "k1", "RS256"),
        (rsa_key(1), "k1", "PS256"),
        (ec_key(), "e1", "ES256"),
        (ed_key(), "d1", "EdDSA"),
    ):
        principal = await door.knock(door.token(key, kid, alg))
        assert principal is not None, alg
        assert principal.principal_id == f"token:{ISSUER}:ada"
        assert Permission.OPERATE in principal.permissions_in("anything")
        assert principal.expires_at == door.clock.now() + timedelta(seconds=630)


def forged(header: dict[str, Any], claims: dict[str, Any], sign: Any) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    signed = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    return f"{signed}.{part(sign(signed.encode()))}"


async def test_no_algorithm_is_taken_that_is_not_allowed() -> None:
    door = Door()
    claims = door.claims()
    pem = rsa_key(1).public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    for name in ("none", "None", "NONE", "nOnE"):
        await door.refuses(forged({"alg": name, "kid": "k1"}, claims, lambda _: b""))
    # The public key taken for a shared secret.
    await door.refuses(
        forged({"alg": "HS256", "kid": "k1"}, claims, lambda data: hmac.digest(pem, data, hashlib.sha256))
    )
    await door.refuses(door.token(rsa_key(1), "k1", "RS512"))
    # A key of one kind with an algorithm of another.
    await door.refuses(forged({"alg": "ES256", "kid": "k1"}, claims, lambda _: bytes(64)))
    await door.refuses(forged({"alg": "RS256", "kid": "e1"}, claims, lambda _: bytes(256)))


async def test_a_secret_key_in_the_set_checks_nothing() -> None:
    door = Door()
    secret = b"s" * 32
    octets = {"kty": "oct", "kid": "o1", "k": base64.urlsafe_b64encode(secret).decode().rstrip("=")}
    weak = public(rsa_key(3, 1_024), "weak")
    encrypting = public(rsa_key(1), "enc", use="enc")
    door.issuer.keys = [octets, weak, encrypting, {"kty": "RSA", "kid": "bad", "n": "!", "e": "AQAB"}, {"kid": "x"}]
    await door.refuses(jwt.encode(door.claims(), secret, "HS256", headers={"kid": "o1"}))
    sign = jwt.get_algorithm_by_name("RS256").sign
    weakly = forged({"alg": "RS256", "kid": "weak"}, door.claims(), lambda data: sign(data, rsa_key(3, 1_024)))
    await door.refuses(weakly)
    await door.refuses(door.token(rsa_key(1), "enc"))
    await door.refuses(door.token(rsa_key(1), "bad"))
    assert door.authenticator._jwks._keys == {}


async def test_a_changed_token_is_refused() -> None:
    door = Door()
    head, _, signature = door.token().split(".")
    more = base64.urlsafe_b64encode(json.dumps(door.claims(sub="root")).encode()).decode().rstrip("=")
    await door.refuses(f"{head}.{more}.{signature}")
    await door.refuses(door.token(rsa_key(2), "k1"))  # signed by another key under this name
    good = door.token()
    await door.refuses(good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB"))
    await door.refuses(good.rpartition(".")[0] + ".")


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "other"},
        {"aud": ["other", "another"]},
        {"aud": None},
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
    ],
    ids=str,
)
async def test_a_token_for_somebody_else_is_refused(changes: dict[str, Any]) -> None:
    door = Door()
    claims = {**door.claims(), **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    header = {"alg": "RS256", "kid": "k1"}
    sign = jwt.get_algorithm_by_name("RS256").sign
    await door.refuses(forged(header, claims, lambda data: sign(data, rsa_key(1))))


async def test_the_times_are_those_of_the_servers_clock() -> None:
    door = Door()
    token = door.token()
    door.manual.advance(timedelta(seconds=629))
    assert await door.knock(token) is not None
    door.manual.advance(timedelta(seconds=1))
    await door.refuses(token)
    now = door.clock.now().timestamp()
    assert await door.knock(door.token(nbf=now + 29)) is not None
    await door.refuses(door.token(nbf=now + 31))
    await door.refuses(door.token(iat=now + 31))
    header, sign = {"alg": "RS256", "kid": "k1"}, jwt.get_algorithm_by_name("RS256").sign
    for nonsense in (True, "tomorrow", 1e300, [1], {}):
        await door.refuses(forged(header, door.claims(exp=nonsense), lambda data: sign(data, rsa_key(1))))


async def test_an_extension_that_nobody_knows_is_refused() -> None:
    door = Door()
    await door.refuses(door.token(headers={"crit": ["b64"], "b64": True}))
    await door.refuses(door.token(headers={"crit": []}))


@pytest.mark.parametrize("bearer", ["", "a.b", "a.b.c", "..", "ä.b.c", "x" * 20_000 + "..", "e30.e30.", "bnVsbA.W10.AA",
                                    "clew_" + "a" * 60])  # fmt: skip
async def test_what_is_no_token_of_this_issuer_is_left_to_others(bearer: str) -> None:
    door = Door()
    assert await door.knock(bearer) is None
    assert await door.knock(door.token(iss="https://other.example")) is None
    assert door.issuer.fetched == []


# --- keys ----------------------------------------------------------------------------------------------------------


async def test_keys_are_fetched_once_for_many_tokens() -> None:
    door = Door()
    await asyncio.gather(*[door.knock(door.token()) for _ in range(20)])
    assert door.issuer.fetched == [f"{ISSUER}/keys"]


async def test_a_rotated_key_is_found_and_the_old_one_forgotten() -> None:
    door = Door()
    await door.knock(door.token())
    door.issuer.keys = [public(rsa_key(2), "k2")]
    assert await door.knock(door.token()) is not None  # still fresh
    door.manual.advance(timedelta(seconds=11))
    assert await door.knock(door.token(rsa_key(2), "k2")) is not None
    await door.refuses(door.token())


async def test_made_up_key_names_ask_the_issuer_no_more_often() -> None:
    door = Door()
    await door.knock(door.token())
    for number in range(50):
        await door.refuses(door.token(kid=f"made-up-{number}"))
    assert len(door.issuer.fetched) == 1
    door.manual.advance(timedelta(seconds=10))
    for number in range(50):
        await door.refuses(door.token(kid=f"made-up-{number}"))
    assert len(door.issuer.fetched) == 2


async def test_known_keys_outlast_an_issuer_that_is_away_for_a_while() -> None:
    door = Door()
    await door.knock(door.token())
    for error in (OSError("away"), ValueError("nonsense")):
        door.issuer.error = error
        door.manual.advance(timedelta(seconds=1_200))
        assert await door.knock(door.token()) is not None
    door.issuer.error, door.issuer.body = None, b'{"keys": 7}'
    door.manual.advance(timedelta(seconds=1_199))
    assert await door.knock(door.token()) is not None
    door.manual.advance(timedelta(seconds=2))
    await door.refuses(door.token())
    door.issuer.body = None
    door.manual.advance(timedelta(seconds=11))
    assert await door.knock(door.token()) is not None


async def test_without_a_key_name_the_only_key_counts() -> None:
    door = Door()
    token = jwt.encode(door.claims(), rsa_key(1), "RS256")
    await door.refuses(token)  # three keys
    door.issuer.keys = [public(rsa_key(1), "k1")]
    door.manual.advance(timedelta(seconds=11))
    assert await door.knock(token) is not None


async def test_keys_are_discovered() -> None:
    door = Door(jwks_url="")
    assert await door.knock(door.token()) is not None
    assert door.issuer.fetched == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/found"]


@pytest.mark.parametrize(
    "found",
    [
        {"issuer": "https://evil.example", "jwks_uri": "https://evil.example/k"},
        {"issuer": ISSUER, "jwks_uri": "http://id.example/keys"},
        {"issuer": ISSUER},
    ],
)
async def test_a_discovery_that_does_not_fit_is_not_believed(found: dict[str, str]) -> None:
    door = Door(jwks_url="")
    door.issuer.body = json.dumps(found).encode()
    await door.refuses(door.token())
    assert len(door.issuer.fetched) == 1


@pytest.mark.parametrize("url", ["http://id.example/keys", "file:///etc/passwd", "ftp://id.example", "id.example", ""])
def test_keys_are_fetched_only_where_nobody_can_change_them(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        check_url(url)
    check_url("http://127.0.0.1:8080/keys")
    check_url("https://id.example/keys")


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        body = b"x" * (BYTES_MAX + 1) if self.path == "/large" else b'{"keys": []}'
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def http_url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_fetching_is_bounded(http_url: str) -> None:
    assert await fetch_url(f"{http_url}/keys") == b'{"keys": []}'
    with pytest.raises(ValueError, match="more than"):
        await fetch_url(f"{http_url}/large")
    for path in ("/none", "/moved"):
        with pytest.raises(OSError, match=r"HTTP Error"):
            await fetch_url(http_url + path)


async def test_a_slow_issuer_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks_module, "FETCH_SECONDS_MAX", 0.01)
    clock = ManualClock().attach(asyncio.get_running_loop())
    asked: list[str] = []

    async def never(url: str) -> bytes:
        asked.append(url)
        await asyncio.get_running_loop().create_future()
        return b""

    keys = Jwks(f"{ISSUER}/keys", ISSUER, clock, fetch=never)
    assert await asyncio.wait_for(keys.find("k1"), 5) is None
    assert await asyncio.wait_for(keys.find("k1"), 5) is None
    assert len(asked) == 1
    await keys.close()


# --- claims to grants ----------------------------------------------------------------------------------------------


async def grants(door: Door, **claims: Any) -> list[str]:
    principal = await door.knock(door.token(**claims))
    assert principal is not None
    return [str(grant) for grant in principal.grants]


async def test_claims_become_grants_by_the_mapping() -> None:
    door = Door()
    assert await grants(door, permissions=["payments", "unknown", 7, None, ["oncall"]]) == [
        "payments:client",
        "payments:worker",
    ]
    assert await grants(door, permissions="payments oncall payments") == [
        "payments:client",
        "payments:worker",
        "*:operator",
    ]
    for nothing in (None, 7, {"oncall": True}, []):
        assert await grants(door, permissions=nothing) == []


async def test_an_issuer_writes_grants_only_where_it_is_trusted_to() -> None:
    assert await grants(Door(), permissions=["*:admin"]) == []
    assert await grants(Door(trusts_grants=True), permissions=["*:admin", "nonsense", "a:king"]) == ["*:admin"]
    assert len(await grants(Door(trusts_grants=True), permissions=[f"n{n}:reader" for n in range(500)])) == 100


async def test_a_claim_may_lie_deeper() -> None:
    door = Door(roles_claim="realm_access.roles", name_claim="name")
    principal = await door.knock(door.token(realm_access={"roles": ["oncall"]}, name="Ada L."))
    assert principal is not None
    assert [str(grant) for grant in principal.grants] == ["*:operator"]
    assert principal.name == "Ada L."
    assert await grants(door, realm_access=["roles"]) == []
    assert await grants(Door(roles_claim="https://example/roles"), **{"https://example/roles": ["oncall"]}) == [
        "*:operator"
    ]


@pytest.mark.parametrize(
    "changes",
    [{"algorithms": ("HS256",)}, {"algorithms": ("none",)}, {"algorithms": ()}, {"audience": ()}, {"issuer": ""},
     {"jwks_url": "http://id.example/keys"}, {"grants": {"oncall": ("nonsense",)}}],
)  # fmt: skip
async def test_settings_that_would_let_in_anybody_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"choose from|an audience|https URL|no grant"):
        Door(**changes)
