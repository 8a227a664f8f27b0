# SPDX-License-Identifier: MIT
"""Keeps descriptors of GPU memory, and a table of what lies there, for a user's next server.

    python3 keeper.py SOCKET

It has no CUDA, and opens no GPU.
"""
import io
import json
import logging
import os
import resource
import select
import socket
import struct
import sys

SO_PEERPIDFD = 77  # from Linux 6.5 on; it knows the peer in any PID namespace
MESSAGE = 253  # descriptors of one message, at most


def send(end, table, fds=()):
    data = json.dumps(table).encode()
    end.sendall(struct.pack("=II", len(data), len(fds)) + data)
    for at in range(0, len(fds), MESSAGE):
        socket.send_fds(end, [b"f"], fds[at:at + MESSAGE])


def receive(end):
    size, count = struct.unpack("=II", end.recv(8, socket.MSG_WAITALL))
    table, fds = json.loads(end.recv(size, socket.MSG_WAITALL)), []
    while len(fds) < count:
        _, some, flags, _ = socket.recv_fds(end, 1, MESSAGE, socket.MSG_CMSG_CLOEXEC)
        fds += [io.FileIO(fd) for fd in some]  # which closes itself
        if not some or flags & socket.MSG_CTRUNC:
            raise OSError("%d descriptors of %d came: raise ulimit -n" % (len(fds), count))
    return table, fds


def serve(peer, kept):
    """A name, a table and descriptors: keeps them; without descriptors, ends them. A name alone: gives them, once their last user has ended."""
    pid, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise OSError("user %d is not %d" % (user, os.getuid()))
    try:
        process = io.FileIO(struct.unpack("i", peer.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0])
    except OSError:
        process = io.FileIO(os.pidfd_open(pid))
    (name, table), fds = receive(peer)
    if table is not None:
        os.close(os.dup(peer.fileno()))  # without this much room nobody could ask for them
        kept[name] = table, fds, process
        if not fds:
            del kept[name]
        return send(peer, len(fds))
    table, fds, last = kept.get(name, (None, (), None))
    if last and not select.select([last], [], [], 0)[0]:
        return send(peer, "busy", [last.fileno()])  # its pidfd, to be waited for
    if last:
        kept[name] = table, fds, process
    send(peer, table, [fd.fileno() for fd in fds])


def main(path):
    if os.getuid() == int(open("/proc/sys/kernel/overflowuid").read()):
        sys.exit("keeper: this user's number is also that of users whom this namespace does not know")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    logging.basicConfig(format="keeper: %(message)s")  # whose stderr may be gone
    kept, server = {}, socket.socket(socket.AF_UNIX)
    os.umask(0o077)
    new = path + ".new"
    if os.path.exists(new):
        os.unlink(new)
    server.bind(new)
    server.listen()
    os.rename(new, path)  # whoever finds it can connect
    while True:
        with server.accept()[0] as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 10, 0))
            try:
                serve(peer, kept)
            except Exception as error:  # of any message; what is kept stays
                logging.error("%r", error)


if __name__ == "__main__":
    main(sys.argv[1])
