"""The network interface that gloo and NCCL use between hosts: the one that is routed towards the master.

Left alone, gloo takes the address that this host's own name resolves to, and NCCL the first interface that is neither
lo nor docker's. On Debian the former is ``127.0.1.1`` (a line of /etc/hosts), which no other host can reach: one host
then fails and the others wait. So the kernel is asked which address it would send from (a UDP socket that is connected
and sends nothing), and the interface that has it is named, unless the person named one. Linux; elsewhere nothing is
chosen. Known weakness: NCCL could use several interfaces side by side; name them, then.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from minimind.base.errors import UserError

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_SIOCGIFCONF = 0x8912  # <linux/sockios.h>
_IFREQ = 40 if struct.calcsize("P") == 8 else 32  # bytes: a name of 16, then an address
_INET6 = Path("/proc/net/if_inet6")


def choose_interfaces(
    environment: MutableMapping[str, str], master: str, several_hosts: bool | None, first: bool
) -> None:
    """Name the interface towards ``master`` in the variables of gloo and NCCL that the person has not set.

    ``several_hosts`` None: not known. ``first``: this may be the master's own host, where its name may mean loopback if
    the interfaces are named. Raises UserError where the master's address is one that other hosts can't mean.
    """
    unnamed = [name for name in (GLOO, NCCL) if not environment.get(name)]
    found = addresses(master)
    if several_hosts is False or not found:  # the ranks' meeting says what is wrong with a name
        return
    if all(map(is_loopback, found)):
        if several_hosts and (unnamed or not first):
            agents = "TORCHELASTIC_RUN_ID" in environment  # torchrun's say how they are reached, where none is given
            raise UserError(_loopback(master, found[0], "--local-addr of torchrun" if agents else "--master_addr"))
    elif unnamed and (name := interface_towards(found[0])):
        # "=": NCCL takes a bare name for the beginning of one (eth1 for eth10, too)
        environment.update({variable: name if variable == GLOO else f"={name}" for variable in unnamed})


def addresses(host: str) -> list[str]:
    """What a name resolves to here, the resolver's first choice first; none if it doesn't."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def is_loopback(address: str) -> bool:
    """Whether an address means the host that it is used on."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def interface_towards(address: str) -> str | None:
    """The interface whose address this host's packets to ``address`` carry; None if there is no route, or it is lo."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return None
    name = next((name for name, held in interfaces() if ipaddress.ip_address(held) == ipaddress.ip_address(own)), None)
    return None if name == "lo" else name


def interfaces() -> Iterator[tuple[str, str]]:
    """Each interface with each of its addresses. Linux; elsewhere none."""
    with contextlib.suppress(OSError):
        yield from _ipv4()
        for line in _INET6.read_text().splitlines():
            digits, name = line.split()[0], line.split()[-1]
            yield name, str(ipaddress.ip_address(bytes.fromhex(digits)))


def _ipv4() -> Iterator[tuple[str, str]]:
    """By SIOCGIFCONF (netdevice(7)), which lists second addresses too, some of them under a label such as eth0:1."""
    size = 1024 * _IFREQ
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        room = array.array("B", bytes(size))
        request = struct.pack("iL", size, room.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(probe, _SIOCGIFCONF, request))[0]
    for start in range(0, used, _IFREQ):
        entry = room[start : start + _IFREQ].tobytes()
        yield entry[:16].split(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(entry[20:24])


def _loopback(master: str, address: str, option: str) -> str:
    return (
        f"MASTER_ADDR={master} is {address} on {socket.gethostname()}, which no other host can reach, and this run has "
        f"several hosts; usually a line `127.0.1.1 {master}` in /etc/hosts (Debian writes it): take it out, or give "
        f"the address by which the others reach it ({option}), or name the interface in {GLOO} and {NCCL}"
    )
