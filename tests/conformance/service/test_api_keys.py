"""API keys through the contract: made, listed, taken back, rotated; what is kept of them."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

import pytest

from clew.core.api_keys import decode_record, is_secret_of, read_key
from clew.model.rejection import RejectionCode
from clew.service import keys as k
from clew.service.errors import RPCError
from tests.conformance.service.scripted import Shop, soon

HOUR = timedelta(hours=1)


async def make(shop: Shop, name: str = "ci", **fields: object) -> k.CreateApiKeyResponse:
    values = {"name": name, "grants": ("default:client",), "identity": "root", **fields}
    return await soon(shop.engine.create_api_key(k.CreateApiKeyRequest(**values)))  # type: ignore[arg-type]


async def keys(shop: Shop, *, ended: bool = False) -> dict[str, k.ApiKeyInfo]:
    answer = await soon(shop.engine.list_api_keys(k.ListApiKeysRequest(include_ended=ended)))
    return {info.key_id: info for info in answer.keys}


async def refusal(call: Awaitable[object]) -> RejectionCode:
    with pytest.raises(RPCError) as refused:
        await soon(call)
    return refused.value.code


async def test_a_key_is_told_once_and_kept_as_a_digest(shop: Shop) -> None:
    made = await make(shop, expires_in=HOUR, calls_per_second_max=5.0)
    read = read_key(made.key)
    assert read is not None
    key_id, secret = read
    assert key_id == made.info.key_id
    row = await shop.engine._store.get_api_key(key_id)
    assert row is not None
    assert is_secret_of(decode_record(row.body), secret)
    assert not is_secret_of(decode_record(row.body), secret[:-1] + bytes([secret[-1] ^ 1]))
    assert not is_secret_of(None, secret)
    assert made.key.split("_", 2)[2].encode() not in row.body
    listed = (await keys(shop))[key_id]
    assert listed == made.info
    assert (listed.grants, listed.created_by) == (("default:client",), "root")
    assert listed.expires_at == shop.clock.now() + HOUR
    assert listed.calls_per_second_max == 5.0


async def test_no_text_of_the_answer_has_the_key(shop: Shop) -> None:
    made = await make(shop)
    assert made.key not in repr(made)
    assert made.key not in str(made.__rich_repr__())
    assert made.key not in f"{made}"


async def test_keys_differ(shop: Shop) -> None:
    made = [await make(shop) for _ in range(20)]
    assert len({one.key for one in made}) == 20
    assert len(await keys(shop)) == 20


async def test_a_revoked_key_is_ended_for_good(shop: Shop) -> None:
    made = await make(shop)
    revoke = k.RevokeApiKeyRequest(key_id=made.info.key_id, identity="root")
    info = await soon(shop.engine.revoke_api_key(revoke))
    assert info.revoked_at == shop.clock.now()
    assert not info.is_live
    shop.advance(60)
    assert (await soon(shop.engine.revoke_api_key(revoke))).revoked_at == info.revoked_at
    assert await keys(shop) == {}
    assert set(await keys(shop, ended=True)) == {made.info.key_id}
    assert await refusal(shop.engine.rotate_api_key(k.RotateApiKeyRequest(key_id=made.info.key_id))) is (
        RejectionCode.INVALID_ARGUMENT
    )


async def test_an_expired_key_is_listed_as_ended(shop: Shop) -> None:
    made = await make(shop, expires_in=HOUR)
    shop.advance(3_599)
    assert (await keys(shop))[made.info.key_id].is_live
    shop.advance(1)
    assert await keys(shop) == {}
    assert not (await keys(shop, ended=True))[made.info.key_id].is_live


async def test_rotation_makes_another_and_ends_the_old_one_later(shop: Shop) -> None:
    old = await make(shop, grants=("default:worker", "*:reader"), calls_per_second_max=2.0)
    rotate = k.RotateApiKeyRequest(key_id=old.info.key_id, overlap=HOUR, expires_in=2 * HOUR)
    new = await soon(shop.engine.rotate_api_key(rotate))
    assert new.key != old.key
    assert (new.info.name, new.info.grants) == ("ci", ("default:worker", "*:reader"))
    assert new.info.calls_per_second_max == 2.0
    listed = await keys(shop)
    assert listed[old.info.key_id].expires_at == shop.clock.now() + HOUR
    assert listed[old.info.key_id].replaced_by == new.info.key_id
    shop.advance(3_600)
    assert set(await keys(shop)) == {new.info.key_id}


async def test_rotation_never_prolongs_the_old_key(shop: Shop) -> None:
    old = await make(shop, expires_in=timedelta(minutes=5))
    await soon(shop.engine.rotate_api_key(k.RotateApiKeyRequest(key_id=old.info.key_id, overlap=HOUR)))
    assert (await keys(shop))[old.info.key_id].expires_at == shop.clock.now() + timedelta(minutes=5)


async def test_rotation_without_overlap_ends_the_old_key_now(shop: Shop) -> None:
    old = await make(shop)
    new = await soon(shop.engine.rotate_api_key(k.RotateApiKeyRequest(key_id=old.info.key_id, overlap=timedelta(0))))
    assert set(await keys(shop)) == {new.info.key_id}


@pytest.mark.parametrize(
    "fields",
    [
        {"name": " "},
        {"name": "x" * 201},
        {"name": "red\x1b[31m"},
        {"grants": ()},
        {"grants": ("default",)},
        {"grants": ("default:king",)},
        {"grants": ("a:reader",) * 101},
        {"expires_in": timedelta(seconds=-1)},
        {"expires_in": timedelta(days=40_000)},
        {"calls_per_second_max": 0.0},
        {"calls_per_second_max": float("nan")},
    ],
)
async def test_what_no_key_can_be_is_refused(shop: Shop, fields: dict[str, object]) -> None:
    assert await refusal(make(shop, **fields)) is RejectionCode.INVALID_ARGUMENT  # type: ignore[arg-type]
    assert await keys(shop, ended=True) == {}


async def test_a_key_that_is_not_there(shop: Shop) -> None:
    for call in (
        shop.engine.revoke_api_key(k.RevokeApiKeyRequest(key_id="nope")),
        shop.engine.rotate_api_key(k.RotateApiKeyRequest(key_id="nope")),
    ):
        with pytest.raises(RPCError) as error:
            await soon(call)
        assert error.value.code is RejectionCode.API_KEY_NOT_FOUND
        assert "clew key list" in error.value.message


async def test_keys_outlive_the_engine(file_shop: Shop) -> None:
    made = await make(file_shop)
    await file_shop.restart()
    assert set(await keys(file_shop)) == {made.info.key_id}


SECRET_TEXT = "A" * 43


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clew_",
        f"clew_{'a' * 18}_{'!' * 43}",
        f"clew_{'a' * 18}-{SECRET_TEXT}",
        f"Clew_{'a' * 18}_{SECRET_TEXT}",
        f"clew_{'ä' * 18}_{SECRET_TEXT}",
        "x" * 67,
    ],
)
def test_what_is_not_written_like_a_key_is_none(text: str) -> None:
    assert read_key(text) is None


def test_what_is_written_like_a_key_is_read() -> None:
    assert read_key(f"clew_{'a' * 18}_{SECRET_TEXT}") == ("a" * 18, bytes(32))
