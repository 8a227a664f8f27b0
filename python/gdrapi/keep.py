# SPDX-License-Identifier: MIT
"""GPU memory that outlives its process: the client of gdrcopy_keep(1).

A refusal raises OSError, whose text is a sentence; TimeoutError says for whom the keeper waits.
"""
import array
import ctypes
import errno
import fcntl
import json
import logging
import os
import resource
import socket
import time
import uuid
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._cuda import CudaArray, _call
from ._errors import GdrError
from ._share import _Fd, _of, share, to_fds
from ._source import GpuArray

_MESSAGE = 253  # descriptors of one message, as the kernel has it
_PATIENCE = 10.0  # seconds in which a keeper that is not stopped answers


def _pidfd(pid: int) -> _Fd:
    fd = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(434), ctypes.c_int(pid), ctypes.c_uint(0))  # Python 3.9 has os.pidfd_open
    if fd < 0:
        raise OSError(ctypes.get_errno(), "process %d: %s" % (pid, os.strerror(ctypes.get_errno())))
    return _Fd(fd)


def _uuid(device: int) -> str:
    said = (ctypes.c_char * 16)()
    _call("cuDeviceGetUuid_v2", said, device)
    return "GPU-%s" % uuid.UUID(bytes=said.raw)


def _device(gpu: str) -> int:
    count = ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDeviceGetCount", ctypes.byref(count))
    seen = [_uuid(device) for device in range(count.value)]
    if gpu not in seen:
        raise OSError(errno.ENODEV, "the memory lies on %s, and this process sees %s: CUDA_VISIBLE_DEVICES is %r"
                      % (gpu, ", ".join(seen) or "no GPU", os.environ.get("CUDA_VISIBLE_DEVICES")))
    return seen.index(gpu)


def _gpu_of(addresses: Iterable[int]) -> str:
    devices, device = set(), ctypes.c_int()
    for address in addresses:
        _call("cuPointerGetAttribute", ctypes.byref(device), 9, ctypes.c_uint64(address))  # the device's number
        devices.add(device.value)
    if len(devices) != 1:
        raise ValueError("the arrays lie on %d GPUs: keep a set for each GPU" % len(devices))
    return _uuid(devices.pop())


class _Talk(socket.socket):
    """A conversation with the keeper: one question, one answer."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX)
        self._path, end = path, time.monotonic() + _PATIENCE
        self.settimeout(_PATIENCE)
        while True:
            try:
                return self.connect(path)
            except OSError as error:
                if error.errno != errno.EAGAIN or time.monotonic() > end:  # EAGAIN: many wait to be accepted
                    raise OSError(error.errno or errno.EINVAL, "no keeper serves %s: %s" % (path, error.strerror or error)) from None
                time.sleep(0.01)

    def ask(self, question: Dict[str, Any], fds: Sequence[int] = (), wait: float = 0) -> Tuple[Dict[str, Any], List[_Fd]]:
        """The answer and its descriptors; a refusal raises OSError."""
        got: List[_Fd] = []
        self.settimeout(wait + _PATIENCE)
        try:
            self._send(json.dumps(question).encode(), fds)
            answer = json.loads(self._read(min(int.from_bytes(self._read(4, got), "little"), 16 << 20), got))
        except socket.timeout:
            raise OSError(errno.ETIMEDOUT, "the keeper of %s does not answer: it may be stopped" % self._path) from None
        if answer.get("ok"):
            return answer, got
        raise OSError(getattr(errno, answer["errno"]), str(answer["error"]))

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        if isinstance(ended[1], (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)):
            raise OSError(errno.EPROTO, "%s answers what no keeper says: %s" % (self._path, ended[1])) from None

    def _send(self, body: bytes, fds: Sequence[int]) -> None:
        left, end = len(body).to_bytes(4, "little") + body, time.monotonic() + _PATIENCE
        while left:
            try:
                sent = self.sendmsg([left], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
                left, fds = left[sent:], ()
            except (BrokenPipeError, ConnectionResetError):
                return  # the refusal may lie there
            except OSError as error:  # ETOOMANYREFS: the user's other processes have sent as much as he may
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > end:
                    raise
                time.sleep(0.005)

    def _read(self, size: int, fds: List[_Fd]) -> bytes:
        data = b""
        while len(data) < size:
            part, rights, flags, _ = self.recvmsg(min(size - len(data), 1 << 20), socket.CMSG_SPACE(4 * _MESSAGE), socket.MSG_CMSG_CLOEXEC)
            for _, _, numbers in rights:
                fds += [_Fd(fd) for fd in array.array("i", numbers[:len(numbers) // 4 * 4])]
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, "the keeper's descriptors do not fit into this process: raise its hard limit (ulimit -Hn)")
            if not part:
                raise OSError(errno.ECONNRESET, "the keeper of %s has ended in the middle" % self._path)
            data += part
        return data


class Store:
    """The keeper of that socket, in a folder that only you and root can write: it gets the memory, and gives it."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """It makes room for descriptors, which takes 10 ms and more once CUDA has threads: so make it before."""
        self._path, hard = os.fspath(path), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._sets: Dict[Tuple[str, str, int], int] = {}  # the keeper's numbers of what a process has, not a child that it forks
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with socket.socket(socket.AF_UNIX) as any:
            os.close(fcntl.fcntl(any, fcntl.F_DUPFD_CLOEXEC, min(4095, hard - 1)))

    def _ask(self, talk: _Talk, key: Tuple[str, str, int], question: Dict[str, Any], processes: Sequence[_Fd], wait: float = 0) -> Dict[str, Any]:
        question = dict(question, name=key[0], version=key[1], **{"set": self._sets[key]} if key in self._sets else {})
        return talk.ask(question, [one.fd for one in processes], wait)[0]

    def take(self, name: str, version: str = "", timeout: float = 30, load: bool = True, device: Optional[int] = None,
             workers: Sequence[int] = ()) -> Optional[Dict[str, CudaArray]]:
        """The arrays by name, once all processes that have them have ended; or None, with the right to load.

        The right ends with this process, or with keep; others that take wait for that. With load=False None gives no right.
        workers are processes that use the memory, too: nobody else gets it before they have ended. A take again adds workers.
        OSError if the memory is not on this process' GPU number device. TimeoutError says who has not ended, or not loaded.
        """
        key, question, fds = (name, version, os.getpid()), {"op": "take", "load": load}, []  # type: Tuple[str, str, int], Dict[str, Any], List[_Fd]
        processes, longest = [_pidfd(pid) for pid in (os.getpid(), *workers)], max(0.001, min(2e6, timeout))  # as a socket can wait
        with _Talk(self._path) as talk:
            for wait in (0, longest):
                try:
                    answer = self._ask(talk, key, dict(question, timeout=wait), processes, wait)
                    break
                except FileNotFoundError:  # it is not kept, and load is False
                    return None
                except OSError as error:
                    if error.errno != errno.EBUSY or wait:
                        raise
                    logging.getLogger("gdrapi.keep").info("%s: waiting for at most %g s", error.strerror, timeout)
            self._sets[key] = answer["set"]
            if answer.get("load"):
                return None
            number = _device(answer["gpu"])
            if device not in (None, number):
                raise OSError(errno.EXDEV, "%s@%s lies on cuda:%d (%s), not on cuda:%s" % (name, version, number, answer["gpu"], device))
            while len(fds) < answer["count"]:
                came = talk.ask({"op": "more"})[1]
                if not came:
                    raise OSError(errno.EPROTO, "%s gave %d descriptors of %d" % (self._path, len(fds), answer["count"]))
                fds += came
            names, shareds = answer["table"]["names"], _of(fds, answer["table"]["memory"])
            if len(names) != len(shareds):
                raise ValueError("%d names of %d arrays" % (len(names), len(shareds)))
            return {one: shared.cuda(number) for one, shared in zip(names, shareds)}

    def keep(self, name: str, arrays: Mapping[str, GpuArray], version: str = "", workers: Sequence[int] = ()) -> None:
        """Has the arrays kept, as they are, once the GPU's work on them has ended: all of them on one GPU.

        They replace what is kept by that name and version, at once and whole; if this raises OSError, what was kept stays.
        Do not drop the arrays: an allocator gives their memory to others. If the keeper was restarted and has says False, keep again.
        """
        shareds, key = share(list(arrays.values())), (name, version, os.getpid())
        fds, table = to_fds(shareds)
        if not all(length for _, length, *_ in table[0]):
            raise GdrError(errno.ENOTSUP, "gdr_get_object")  # of dmabuf: no next process could take it
        question = {"op": "put", "gpu": _gpu_of(shared._source.address for shared in shareds), "count": len(fds),
                    "bytes": sum(place[1] for place in table[0]), "table": {"names": list(arrays), "memory": table}}
        if not all(isinstance(one, str) for one in (name, version, *arrays)):
            raise TypeError("a name, or the version, is no str")
        processes = [_pidfd(pid) for pid in (os.getpid(), *workers)]
        with _Talk(self._path) as talk:
            answer, at = self._ask(talk, key, question, processes), 0
            while at < len(fds):
                part = fds[at:at + max(1, min(answer["want"], _MESSAGE))]
                at, (answer, _) = at + len(part), talk.ask({"op": "fds"}, part, 600)  # s: systemd compares each with all that it has
            self._sets[key] = answer["set"]

    def has(self, name: str, version: str = "") -> bool:
        """True while the keeper has what this process took from it, or had it keep."""
        with _Talk(self._path) as talk:
            sets = talk.ask({"op": "list"})[0]["sets"]
            return any(one["set"] == self._sets.get((name, version, os.getpid())) and one["state"] != "loading" for one in sets)
