# SPDX-License-Identifier: MIT
"""GPU memory of CUDA's driver, and the closing line that the suite counts."""
import ctypes
import gc
import multiprocessing
import os
import re
import subprocess
import sys
import zipfile

import pytest

import gdrapi


TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)


#: What ctypes has for the types of the headers. A pointer is an address; a handle is a struct of one number.
C_TYPES = {
    "void": None, "bool": ctypes.c_bool, "int": ctypes.c_int, "unsigned": ctypes.c_uint, "unsigned int": ctypes.c_uint,
    "unsigned long": ctypes.c_ulong, "size_t": ctypes.c_size_t, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
    "CUdevice": ctypes.c_int, "CUdeviceptr": ctypes.c_uint64, "gdr_attr_t": ctypes.c_int,
    "gdr_t": ctypes.c_void_p, "vkgdr_t": ctypes.c_void_p, "vkgdr_memory_t": ctypes.c_void_p,
}


def prototypes(*headers, **types):
    """What these headers declare: of each function what it returns, and takes. types has more C_TYPES."""
    found = {}
    paths = [os.path.join(TOP, "include", header) for header in headers]
    said = subprocess.run([os.path.join(TOP, "tests", "headers.sh"), *paths], check=True, stdout=subprocess.PIPE, text=True)
    for line in said.stdout.splitlines():
        name, result, arguments = line.split("\t")
        taken = [] if arguments == "void" else arguments.split(",")
        found[name] = c_type(result, types), [c_type(re.sub(r"\w+$", "", one.strip()), types) for one in taken]
    return found


def c_type(text, types):
    return ctypes.c_void_p if "*" in text else {**C_TYPES, **types}.get(text.strip(), text)


class Cuda:
    """The driver's few calls that the tests make, on GPU 0."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def current(self):
        """The thread's current context; its value is None where there is none."""
        context = ctypes.c_void_p()
        self("cuCtxGetCurrent", ctypes.byref(context))
        return context

    def gpus(self):
        """How many GPUs there are."""
        count = ctypes.c_int()
        self("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def __call__(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        assert result == 0, "%s: %d" % (name, result)

    def alloc(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address):
        self("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address, data):
        """The CPU's mapping shows the bytes once CUDA has synchronised: docs/ordering.md."""
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        self("cuCtxSynchronize")

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw


class Array:
    """An array of the driver's memory, or of somebody else's at an address, with __cuda_array_interface__."""

    base = None

    def __init__(self, cuda, shape=(1024,), typestr="<f4", offset=0, readonly=False, strides=None,
                 itemsize=None, descr=None, at=None):
        self.cuda, self.shape, self.typestr, self.strides = cuda, shape, typestr, strides
        self.nbytes, self.descr = itemsize or int(typestr[2:]), descr
        for n in shape:
            self.nbytes *= n
        if at is None:
            self.base = cuda.alloc(max(self.nbytes + offset, 65536))  # dmabuf exports no page that begins in free space
        self.address, self.readonly = at or self.base + offset, readonly

    def __del__(self):
        if self.base:
            self.cuda.free(self.base)

    @property
    def __cuda_array_interface__(self):
        return {"version": 3, "shape": self.shape, "typestr": self.typestr, "strides": self.strides,
                "data": (self.address, self.readonly), **({"descr": self.descr} if self.descr else {})}

    def get(self, size=None, offset=0):
        """What CUDA reads."""
        return self.cuda.read(self.address + offset, self.nbytes if size is None else size)

    def put(self, data):
        """CUDA writes."""
        self.cuda.write(self.address, data)


class Segment:
    """Memory objects side by side, as PyTorch's expandable_segments have them."""

    def __init__(self, cuda, lengths):
        self.cuda, self.lengths, address, handle = cuda, lengths, ctypes.c_uint64(), ctypes.c_uint64()
        self.size, none = ctypes.c_uint64(sum(lengths)), ctypes.c_uint64(0)
        cuda("cuMemAddressReserve", ctypes.byref(address), self.size, none, none, none)
        self.address, at = address.value, address.value
        for length in lengths:
            where = ctypes.c_uint64(at), ctypes.c_uint64(length)
            cuda("cuMemCreate", ctypes.byref(handle), ctypes.c_uint64(length), (ctypes.c_int * 8)(1, 0, 1, 0), none)
            cuda("cuMemMap", *where, none, handle, none)
            cuda("cuMemRelease", handle)
            at += length
        cuda("cuMemSetAccess", address, self.size, (ctypes.c_int * 3)(1, 0, 3), ctypes.c_size_t(1))

    def arrays(self, *places):
        """Arrays at offsets, of sizes, each of other bytes."""
        made = [Array(self.cuda, (size,), "|u1", at=self.address + offset) for offset, size in places]
        for number, array in enumerate(made):
            array.put(bytes((number * 31 + at * 7) % 251 for at in range(4096)) * (array.nbytes // 4096) + b"e" * (array.nbytes % 4096))
        return made

    def end(self):
        at = self.address
        for length in self.lengths:
            self.cuda("cuMemUnmap", ctypes.c_uint64(at), ctypes.c_uint64(length))
            at += length
        self.cuda("cuMemAddressFree", ctypes.c_uint64(self.address), self.size)


def in_fork(function, argument):
    """What function returns in a forked child, None of one that dies; argument is
    inherited, not pickled."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=lambda: writer.send(function(argument)))
    child.start()
    writer.close()
    try:
        answer = reader.recv()
    except EOFError:
        answer = None
    child.join()
    return answer, child.exitcode


@pytest.fixture
def watch(monkeypatch):
    """Has the names of calls of C noted, in order, in a list that it returns."""

    def watch(*names):
        made = []
        for name in names:
            real = gdrapi._lib.function(name)
            monkeypatch.setattr(gdrapi._lib.library(), name, lambda *a, n=name, f=real: (made.append(n), f(*a))[1])
        return made

    return watch


@pytest.fixture(scope="session")
def cuda():
    return Cuda()


@pytest.fixture
def array(cuda):
    return Array(cuda)


@pytest.fixture
def make(cuda):
    return lambda **how: Array(cuda, **how)


@pytest.fixture
def segment(cuda):
    made = []

    def segment(*lengths):
        made.append(Segment(cuda, lengths))
        return made[-1]

    yield segment
    gc.collect()
    for one in made:
        one.end()


@pytest.fixture
def gdr():
    with gdrapi.open() as opened:
        yield opened


def pip(*arguments, **environment):
    """pip without a network."""
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
                   check=True, env={**os.environ, "PIP_NO_INDEX": "1", **environment})


@pytest.fixture
def install(tmp_path):
    """Has pip make a wheel of a folder of the tree, install it, and a Python run a program on it."""

    def run(folder, names, program):
        pip("wheel", "--no-deps", "-w", str(tmp_path / "wheel"), os.path.join(TOP, folder))
        (wheel,) = (tmp_path / "wheel").iterdir()
        assert "-py3-none-manylinux_2_" in wheel.name
        with zipfile.ZipFile(wheel) as files:
            assert set(names) <= set(files.namelist())
            for name in names:
                if ".so" in name:
                    with open(os.path.join(TOP, "build", os.path.basename(name)), "rb") as library:
                        assert files.read(name) == library.read()
        pip("install", "--target", str(tmp_path / "site"), str(wheel))
        # The doubles alone are where the loader looks.
        doubles = os.pathsep.join(path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
                                  if not os.path.exists(os.path.join(path, "libgdrapi.so.2")))
        done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True,
                              cwd=str(tmp_path), env={**os.environ, "LD_LIBRARY_PATH": doubles,
                                                      "PYTHONPATH": str(tmp_path / "site")})
        return done.stdout.splitlines()

    return run


counts = {"passed": 0, "failed": 0, "skipped": 0}


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        counts[report.outcome] += 1


def pytest_collectreport(report):
    if report.failed:
        counts["failed"] += 1


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        print("\n%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
