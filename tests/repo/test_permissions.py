"""Every call of the contract has a permission: a new one cannot be forgotten, and is closed until somebody says."""

from __future__ import annotations

import inspect

from clew.engine import Engine
from clew.model.access import Permission
from clew.server.security.authorized import AuthorizedService
from clew.server.security.calls import CALLS
from clew.service.contract import Service
from scripts.permissions_page import MEANINGS

CONTRACT = {name for name, _ in inspect.getmembers(Service, inspect.isfunction) if not name.startswith("_")}


def test_every_call_of_the_contract_has_a_rule() -> None:
    assert set(CALLS) == CONTRACT, (
        f"clew.server.security.calls.CALLS lacks {sorted(CONTRACT - set(CALLS))}, and has "
        f"{sorted(set(CALLS) - CONTRACT)} too much: say which permission each call of the contract needs, and add it "
        "to AuthorizedService, and in tests/server/security to the samples and to the table"
    )


def test_every_call_goes_through_the_wrapper_with_its_own_rule() -> None:
    for name in sorted(CONTRACT):
        method = vars(AuthorizedService).get(name)
        assert method is not None, f"AuthorizedService has no {name}"
        assert f'self._call("{name}", ' in inspect.getsource(method), f"AuthorizedService.{name} asks for another rule"
        assert hasattr(Engine, name)


def test_every_permission_is_explained() -> None:
    assert set(MEANINGS) == set(Permission)
