# SPDX-License-Identifier: MIT
"""gdrapi.keep with gdrcopy_keep: memory whose process is killed, in the next process."""
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import TOP
from gdrapi import keep

KEEPER = os.path.join(TOP, "build", "bin", "gdrcopy_keep")

# A server: takes what is kept, adds 1 to each byte and says each array's first one; or makes it, and has it kept.
SERVER = """
import json, os, signal, sys
path, name, version, count, worker = sys.argv[2:7]
sys.path.insert(0, sys.argv[1])
from gdrapi import keep
store = keep.Store(path)
import conftest, gdrapi
arrays = store.take(name, version, timeout=60)
cuda = conftest.Cuda()
child = [os.fork()] if worker else []
if child == [0]:
    os.closerange(1, 3)  # whoever reads them waits for nobody
    signal.pause()
if arrays is None:
    sizes = [4096, 100, 1 << 20] + [2 << 20] * int(count)
    arrays = {"w%d" % n: conftest.Array(cuda, (size,), "|u1") for n, size in enumerate(sizes)}
    for array in arrays.values():
        array.put(bytes([1]) * array.nbytes)
    store.keep(name, arrays, version, workers=child)
elif child:
    store.take(name, version, workers=child)
said = {}
for name, array in arrays.items():
    data = cuda.read(array.address, array.nbytes)
    said[name] = data[0] if data == data[:1] * len(data) else data.hex()
    cuda.write(array.address, bytes(b + 1 for b in data[:1]) * len(data))
print(json.dumps([said, "libgdrapi" in open("/proc/self/maps").read(), *child]), flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def rm(gdr, request):
    if gdr.backend != "rm" and request.function is not test_what_no_next_process_could_take:
        pytest.skip("CUDA takes descriptors of rm alone")


@pytest.fixture
def serves():
    """Starts a server in a process of its own. What is left of all ends with the test."""
    made = []

    def serves(path, name="llama", version="v1", count=0, worker="", limit=""):
        command = ["sh", "-c", limit + ' exec "$@"', "sh", sys.executable, "-c", SERVER, os.path.dirname(__file__), path, name, version, str(count), worker]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return made[-1]

    yield serves
    for server in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def killed(server):
    line = server.stdout.readline()
    server.kill()
    said = server.communicate()[1]
    assert line, said
    return json.loads(line)


class Keeper:
    """gdrcopy_keep in a process of its own."""

    def __init__(self, path):
        self.path = path
        self.start()

    def start(self):
        self.process = subprocess.Popen([KEEPER, "serve", self.path], stderr=subprocess.DEVNULL)
        while subprocess.run([KEEPER, "check", self.path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def keeper(tmp_path):
    keeper = Keeper(tmp_path / "socket")
    yield keeper
    keeper.end()


@pytest.fixture
def store(keeper):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield keep.Store(keeper.path)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("count", [0, 260])  # more descriptors than a message has
def test_three_servers_killed_one_after_the_other(keeper, count, serves):
    for number in range(3):
        said, library = killed(serves(keeper.path, count=count, limit="ulimit -Sn 64;"))
        assert library == (number == 0)
        assert said == {"w%d" % n: number + 1 for n in range(3 + count)}


def test_it_waits_for_the_last_user_and_says_who_that_is(store, keeper, make, caplog, serves):
    caplog.set_level("INFO")
    server = serves(keeper.path, worker="worker")
    _, _, worker = json.loads(server.stdout.readline())
    for timeout in (0, 0.1):
        with pytest.raises(TimeoutError, match="llama@v1.*held.*process %d" % server.pid):
            store.take("llama", "v1", timeout=timeout)
    assert "waiting for at most 0.1 s" in caplog.text
    assert store.take("llama", "v2", load=False) is None
    with pytest.raises(OSError, match="process %d" % server.pid) as refused:
        store.keep("llama", {"a": make()}, "v1")
    assert refused.value.errno == errno.EBUSY
    server.kill()
    server.communicate()
    with pytest.raises(TimeoutError, match="llama@v1.*held.*process %d" % worker):
        store.take("llama", "v1", timeout=0.1)
    os.kill(worker, signal.SIGKILL)
    assert killed(serves(keeper.path))[0]["w0"] == 2


def test_what_is_not_kept(store, make):
    assert store.take("llama", "v1") is None and store.take("llama", "v1", timeout=float("inf")) is None  # the right is this process'
    with pytest.raises(OSError, match="no keeper serves .*: AF_UNIX path too long"):
        keep.Store("/a" * 100).has("llama")
    with pytest.raises(TypeError, match="no str"):
        store.keep("llama", {1: make()}, "v1")
    assert not store.has("llama", "v1")
    store.keep("llama", {"a": make()}, "v1")
    assert store.has("llama", "v1") and not store.has("llama", "v2")


def test_a_loader_that_is_killed(store, keeper, monkeypatch):
    program = "import sys\nfrom gdrapi import keep\nprint(keep.Store(sys.argv[1]).take('llama', 'v1'), flush=True)\nsys.stdin.read()"
    loader = subprocess.Popen([sys.executable, "-c", program, keeper.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert loader.stdout.readline() == "None\n"
    with pytest.raises(TimeoutError, match="llama@v1.*load.*process %d" % loader.pid):
        store.take("llama", "v1", timeout=0.1)
    monkeypatch.setattr(keep, "_PATIENCE", 2)
    with pytest.raises(TimeoutError, match="process %d" % loader.pid):  # it is not taken for a stopped keeper
        store.take("llama", "v1", timeout=3)
    loader.kill()
    loader.communicate()
    assert store.take("llama", "v1") is None
    child = os.fork()  # the right is its parent's
    if not child:
        with contextlib.suppress(TimeoutError):
            os._exit(store.take("llama", "v1", timeout=0.1) is None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_in_one_process_again_and_the_memory_itself(store, cuda, make, segment):
    several, = segment(2 << 20, 4 << 20, 2 << 20).arrays((1 << 20, 6 << 20))
    arrays = {"one": make(shape=(4, 256)), "two": make(shape=(100,), typestr="|u1"), "several" * 100000: several}  # a long table, too
    for number, array in enumerate((arrays["one"], arrays["two"])):
        array.put(bytes([number + 3]) * array.nbytes)
    store.keep("llama", arrays, "v1")
    taken = store.take("llama", "v1", device=0)
    for name, array in arrays.items():
        assert taken[name].address != array.address and taken[name].shape == array.shape and taken[name].device == 0
        assert cuda.read(taken[name].address, array.nbytes) == array.get()
    with pytest.raises(OSError, match=r"llama@v1 lies on cuda:0 \(GPU-.*\), not on cuda:1"):
        store.take("llama", "v1", device=1)
    store.keep("llama", {"one": arrays["two"]}, "v1")  # in its place
    assert list(store.take("llama", "v1")) == ["one"]


def test_the_keeper_stops_ends_and_is_back(store, keeper, cuda, serves, monkeypatch):
    """Whoever has the arrays keeps them again, also one that took them."""
    killed(serves(keeper.path))
    arrays = store.take("llama", "v1", timeout=10)
    assert store.has("llama", "v1")
    keeper.process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patch, pytest.raises(TimeoutError, match="%s does not answer: it may be stopped" % keeper.path):
        patch.setattr(keep, "_PATIENCE", 0.2)
        store.take("llama", "v1", timeout=0.1)
    keeper.end()
    with pytest.raises(OSError, match="no keeper serves %s" % keeper.path):
        store.has("llama", "v1")
    keeper.start()
    assert not store.has("llama", "v1")
    store.keep("llama", arrays, "v1")
    assert store.has("llama", "v1")
    again = store.take("llama", "v1")
    assert again.keys() == arrays.keys() and cuda.read(again["w1"].address, 100) == bytes([2]) * 100


def test_a_keeper_that_stores_for_long(store, keeper, make, monkeypatch):
    ask = keep._Talk.ask

    def stopped(talk, question, *rest):
        if question["op"] == "fds":
            keeper.process.send_signal(signal.SIGSTOP)
            threading.Timer(0.5, keeper.process.send_signal, [signal.SIGCONT]).start()
            monkeypatch.setattr(keep, "_PATIENCE", 0.01)
        return ask(talk, question, *rest)

    monkeypatch.setattr(keep._Talk, "ask", stopped)
    store.keep("llama", {"one": make()}, "v1")
    monkeypatch.undo()
    assert store.has("llama", "v1")


def test_gpus_by_their_uuids(store, cuda, make, monkeypatch):
    assert [keep._device(keep._uuid(device)) for device in range(cuda.gpus())] == list(range(cuda.gpus()))
    gpu = keep._uuid(0)
    monkeypatch.setattr(keep, "_uuid", lambda device: "GPU-of-another-machine")
    store.keep("llama", {"one": make()}, "v1")
    monkeypatch.undo()
    with pytest.raises(OSError, match="lies on GPU-of-another-machine, and this process sees %s" % gpu) as refused:
        store.take("llama", "v1")
    assert refused.value.errno == errno.ENODEV
    monkeypatch.setattr(keep, "_call", lambda name, out, *rest: setattr(out._obj, "value", rest[1].value % 2))
    with pytest.raises(ValueError, match="2 GPUs"):
        keep._gpu_of([2, 3])


def test_what_no_next_process_could_take(gdr, make):
    why = "no keeper serves /nowhere" if gdr.backend == "rm" else "CUDA takes whole memory objects that rm shared"
    with pytest.raises(OSError, match=why):
        keep.Store("/nowhere").keep("llama", {"one": make()})


def test_descriptors_that_do_not_fit_into_this_process(keeper, serves):
    killed(serves(keeper.path, count=100))
    server = serves(keeper.path, limit="ulimit -n 64;")
    assert "OSError: [Errno %d] the keeper's descriptors do not fit into this process" % errno.EMFILE in server.communicate()[1]


@pytest.mark.parametrize("said", [
    b"", b"\2", b"\2\0\0\0[", b"\2\0\0\0[]", b"\2\0\0\0{}", b"\1\0\0\0\xff", b"\x16\0\0\0{\"errno\": 1, \"error\": 2}", b"\4\0\0\0null",
    b"\x1e\0\0\0{\"errno\":\"ENONE\",\"error\":\"why\"}", b"\x0b\0\0\0{\"ok\":true}", b"\x16\0\0\0{\"ok\":true,\"sets\":[7]}",
    b"\0\0\1\0" + b"[" * 65536,
])
def test_what_no_keeper_says_is_a_sentence(tmp_path, said):
    path = str(tmp_path / "other")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()

        def answers():
            with other.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(said)

        thread = threading.Thread(target=answers)
        thread.start()
        with pytest.raises(OSError, match="%s (answers what no keeper says|has ended in the middle)" % path):
            keep.Store(path).has("llama")
        thread.join()


@pytest.mark.parametrize("call, number", [("connect", errno.EAGAIN), ("sendmsg", errno.ETOOMANYREFS)])
def test_what_the_kernel_refuses_for_a_while(store, make, monkeypatch, call, number):
    """While many wait to be accepted, and while the user's other processes have sent as much as he may."""
    refusals, real = [number] * 3, getattr(keep._Talk, call)

    def refuses(talk, *arguments):
        if refusals and arguments[-1]:  # a path, or descriptors
            raise OSError(refusals.pop(), "too many")
        return real(talk, *arguments)

    monkeypatch.setattr(keep._Talk, call, refuses)
    store.keep("llama", {"one": make()}, "v1")
    assert not refusals and store.has("llama", "v1")
    refusals += [number] * 2
    monkeypatch.setattr(keep, "_PATIENCE", 0)
    with pytest.raises(OSError, match="too many"):
        store.keep("llama", {"one": make()}, "v1")
