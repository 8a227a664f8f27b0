# SPDX-License-Identifier: MIT
"""examples/keep: memory whose process is killed, kept without CUDA, in the next process."""
import json
import os
import socket
import struct
import subprocess
import sys
import time

import gdrapi
import pytest
from conftest import TOP

KEEP = os.path.join(TOP, "examples", "keep")
sys.path.insert(0, KEEP)
import places  # noqa: E402 - of that folder

# A server: takes what is kept, adds 1 to each byte and says the first one's; or makes it, and has it kept.
SERVER = """
import json, os, signal, sys
sys.path[:0] = sys.argv[1:3]
import conftest, gdrapi, places
place = places.Keeper(sys.argv[3]) if sys.argv[3:] else places.Systemd()
table, fds = place.take()
cuda = conftest.Cuda()
if table is None:
    arrays = [conftest.Array(cuda, (size,), "|u1") for size in (4096, 100, 1 << 20)]
    for array in arrays:
        array.put(bytes([1]) * array.nbytes)
    shareds = gdrapi.share(arrays)
    fds, memory = gdrapi.to_fds(shareds)
    place.keep({"memory": memory}, fds)
else:
    arrays = [shared.cuda() for shared in gdrapi.from_fds([os.dup(fd.fileno()) for fd in fds], table["memory"])]
said = []
for array in arrays:
    data = cuda.read(array.address, array.nbytes)
    said.append(data[0] if data == data[:1] * len(data) else data)
    cuda.write(array.address, bytes(b + 1 for b in data))
place.ready()
print(json.dumps([said, "libgdrapi" in open("/proc/self/maps").read()]), flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def rm(gdr):
    if gdr.backend != "rm":
        pytest.skip("CUDA takes descriptors of rm alone")


def serves(*arguments, given=None, **environment):
    """A server; with given as systemd starts it: by name descriptors from 3 on, and its own PID."""
    given = given or {}

    def place():
        for step in (lambda number, fd: os.dup2(fd, 100 + number), lambda number, _: os.dup2(100 + number, 3 + number)):
            for number, fd in enumerate(given.values()):
                step(number, fd)
        os.closerange(100, 100 + len(given))

    if given:
        environment["LISTEN_FDNAMES"] = ":".join(given)
    return subprocess.Popen(["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", sys.executable, "-c", SERVER, KEEP, os.path.dirname(__file__),
                             *arguments], stdout=subprocess.PIPE, text=True, preexec_fn=place, close_fds=not given,
                            env={**os.environ, **environment})


def killed(server):
    said = json.loads(server.stdout.readline())
    server.kill()
    server.wait()
    return said


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "socket")
    process = subprocess.Popen([sys.executable, os.path.join(KEEP, "keeper.py"), path], stderr=subprocess.PIPE, text=True)
    while not os.path.exists(path):
        assert process.poll() is None
        time.sleep(0.01)
    maps = open("/proc/%d/maps" % process.pid).read()
    assert "libcuda" not in maps and "libgdrapi" not in maps and os.stat(path).st_mode & 0o777 == 0o700
    yield path
    process.kill()
    process.wait()


def test_three_servers_killed_one_after_the_other(path):
    assert [killed(serves(path)) for _ in range(3)] == [[[1] * 3, True], [[2] * 3, False], [[3] * 3, False]]


def test_nobody_has_it_before_the_last_one_has_ended(path):
    first = serves(path)
    assert json.loads(first.stdout.readline())[0] == [1] * 3
    second = serves(path)
    place = places.Keeper(path)
    table, fds = place.ask(None)
    assert table == "busy" and len(fds) == 1 and second.poll() is None
    first.kill()
    assert killed(second)[0] == [2] * 3
    first.wait()
    place.keep({}, [])
    assert place.take() == (None, [])


def test_another_user_gets_nothing(path, tmp_path):
    if os.getuid():
        pytest.skip("root alone can be two users")
    os.chmod(tmp_path, 0o777)
    os.chmod(path, 0o777)
    program = ("import os, sys; sys.path.insert(0, %r); import places\n"
               "os.setuid(12345)\nprint(places.Keeper(%r).take())" % (KEEP, path))
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode and not done.stdout


@pytest.mark.parametrize("message", [b"5", b"[[[], []], 1]", b"[" * 100000, b"\xff", b"", None])
def test_what_is_kept_outlives_any_message(path, message):
    place, (file, other) = places.Keeper(path), socket.socketpair()
    place.keep({}, [file.fileno()])
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        end.sendall(b"half" if message is None else len(message).to_bytes(4, sys.byteorder) + bytes(4) + message)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""
    assert place.ask(None)[0] == "busy"
    file.close()
    other.close()


def test_it_keeps_no_more_than_it_can_give(tmp_path):
    path = str(tmp_path / "socket")
    process = subprocess.Popen(["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, os.path.join(KEEP, "keeper.py"), path],
                               stderr=subprocess.PIPE)
    while not os.path.exists(path):
        time.sleep(0.01)
    process.stderr.close()  # nor does it need its stderr
    place, count = places.Keeper(path), 0
    with pytest.raises((OSError, struct.error)):
        for count in range(40, 65):
            place.keep({}, [0] * count)
    assert count < 64 and place.ask(None)[0] == "busy"
    process.kill()
    process.wait()


def test_more_descriptors_than_a_message_has(path):
    files = [os.memfd_create("") for _ in range(600)]
    place = places.Keeper(path)
    owner = subprocess.Popen([sys.executable, "-c", "import sys; sys.path.insert(0, %r); import places\n"
                              "places.Keeper(%r).keep({'n': 600}, %r)" % (KEEP, path, files)], pass_fds=files)
    assert owner.wait() == 0
    table, fds = place.take()
    assert table == {"n": 600} and [os.fstat(a.fileno()).st_ino for a in fds] == [os.fstat(b).st_ino for b in files]
    for fd in files:
        os.close(fd)


def test_systemd_keeps_them_for_a_service_that_it_starts_again(tmp_path):
    path, store = str(tmp_path / "notify"), {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(60)
        for count in range(1, 4):
            server, said = serves(given=store, NOTIFY_SOCKET=path), {}
            while "READY" not in said:
                data, fds, _, _ = socket.recv_fds(systemd, 4096, 1)
                said = dict(line.split("=") for line in data.decode().split("\n"))
                if "FDSTORE" in said:
                    assert said["FDPOLL"] == "0"
                    store[said["FDNAME"]], = fds
            assert killed(server)[0] == [count] * 3
            store = dict(reversed(store.items()))  # systemd promises no order
    assert sorted(store) == ["memory.%d" % number for number in range(len(store) - 1)] + ["table"] and len(store) > 1
    for fd in store.values():
        os.close(fd)
