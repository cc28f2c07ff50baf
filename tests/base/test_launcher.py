"""The launcher of this very environment, on a port of its own."""

import socket
import sys
from pathlib import Path

import pytest

from minimind.base import launcher as launching
from minimind.base.errors import UserError
from minimind.base.launcher import deepspeed_command, free_port, port_problem, printable, rendezvous


def test_a_free_port_can_be_taken() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


def test_launcher_flags_stand_before_the_script(tmp_path: Path) -> None:
    script = tmp_path / "pretrain.py"
    script.touch()
    command = deepspeed_command(script, ["--max-steps", "3"], num_processes=2)
    assert command[0] == sys.executable
    assert Path(command[1]) == Path(sys.executable).parent / "deepspeed"
    assert command.index("--master_port") < command.index(str(script)) < command.index("--max-steps")
    assert command[command.index("--num_gpus") + 1] == "2"
    assert "--num_gpus" not in deepspeed_command(script)


def test_what_is_printed_can_be_typed(tmp_path: Path) -> None:
    script = tmp_path / "a b.py"
    script.touch()
    text = printable(deepspeed_command(script, ["--set", "model.preset=tiny"]))
    assert text.startswith("deepspeed --quiet --master_port ")
    assert text.endswith(f"'{script}' --set model.preset=tiny")


def test_missing_script_and_missing_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no launch script"):
        deepspeed_command(tmp_path / "none.py")
    monkeypatch.setattr(launching.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match="no deepspeed launcher"):
        deepspeed_command(tmp_path / "none.py")


def test_a_port_that_is_taken_at_the_rendezvous_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own error, of a real store on a port that another one has."""
    from torch.distributed import DistNetworkError, TCPStore

    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        assert port_problem(port) is not None
        with pytest.raises(UserError, match=f"port {port} is in use"), rendezvous():
            TCPStore("127.0.0.1", port, is_master=True)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match=f"could not meet at 127.0.0.1:{port}: a stranger$"), rendezvous():
        raise DistNetworkError("a stranger\nException raised from")
    with pytest.raises(RuntimeError, match="something else"), rendezvous():
        raise RuntimeError("something else")


def test_a_port_just_left_is_free() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client.connect(("127.0.0.1", port))
        server.accept()[0].close()  # this side is in TIME_WAIT now
    assert port_problem(port) is None
