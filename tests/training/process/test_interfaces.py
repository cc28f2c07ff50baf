"""Gloo and NCCL are given the interface towards the master; a master that is loopback elsewhere is refused."""

from __future__ import annotations

import socket

import pytest

from minimind.base.errors import UserError
from minimind.training.process import interfaces as module
from minimind.training.process.interfaces import GLOO, NCCL, choose_interfaces, interface_towards, interfaces

FAR = "192.0.2.7"  # documentation's network: routed like any other, and nothing is sent


@pytest.fixture
def towards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose route to anywhere is eth1, and which knows the names that the tests use."""
    names = {"node1": ["127.0.1.1"], "localhost": ["127.0.0.1", "::1"], "far": [FAR], "nowhere": []}
    monkeypatch.setattr(module, "addresses", lambda host: names.get(host, [host]))
    monkeypatch.setattr(module, "interface_towards", lambda address: "eth1")


@pytest.mark.usefixtures("towards")
@pytest.mark.parametrize("several", [True, None])
def test_the_routed_interface_is_named_for_both(several: bool | None) -> None:
    environment: dict[str, str] = {GLOO: ""}
    choose_interfaces(environment, "far", several, first=False)
    assert environment == {GLOO: "eth1", NCCL: "=eth1"}


@pytest.mark.usefixtures("towards")
def test_what_the_person_has_named_stays() -> None:
    environment = {GLOO: "ib0", NCCL: "^docker0"}
    choose_interfaces(environment, "far", True, first=False)
    assert environment == {GLOO: "ib0", NCCL: "^docker0"}
    environment = {NCCL: "ib"}
    choose_interfaces(environment, "far", True, first=False)
    assert environment == {GLOO: "eth1", NCCL: "ib"}


@pytest.mark.usefixtures("towards")
def test_one_host_and_an_unknown_name_are_left_alone() -> None:
    environment: dict[str, str] = {}
    choose_interfaces(environment, "node1", False, first=True)
    choose_interfaces(environment, "far", False, first=True)
    choose_interfaces(environment, "nowhere", True, first=True)
    choose_interfaces(environment, "localhost", None, first=True)  # by hand: two ranks of one host, most likely
    assert environment == {}


@pytest.mark.usefixtures("towards")
@pytest.mark.parametrize("first", [True, False])
def test_a_master_that_is_loopback_here_is_refused_with_the_reason(first: bool) -> None:
    with pytest.raises(UserError) as refused:
        choose_interfaces({NCCL: "eth1"}, "node1", True, first=first)
    message = str(refused.value)
    assert "MASTER_ADDR=node1 is 127.0.1.1" in message and "`127.0.1.1 node1` in /etc/hosts" in message
    named = {GLOO: "eth1", NCCL: "eth1"}
    if first:  # the master's own host may call itself that, if gloo and NCCL do not go by the name
        choose_interfaces(named, "node1", True, first=True)
    else:
        with pytest.raises(UserError):
            choose_interfaces(named, "node1", True, first=False)


def test_this_machines_interfaces_are_seen() -> None:
    seen = set(interfaces())
    assert ("lo", "127.0.0.1") in seen
    assert {name for name, _ in seen} <= {name for _, name in socket.if_nameindex()}
    assert interface_towards("127.0.0.1") is None
    assert interface_towards("no address") is None
    name = interface_towards(FAR)
    assert name is None or name in {name for name, _ in seen}  # None: a machine without a network
