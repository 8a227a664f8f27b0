# SPDX-License-Identifier: MIT
"""Where a server's memory is kept: by keeper.py, or in systemd's descriptor store. Neither has CUDA."""
import io
import json
import os
import select
import socket

import keeper


class Keeper:
    """The keeper of that socket, for one name."""

    def __init__(self, path, name="weights"):
        self.path, self.name = path, name

    def ask(self, table, fds=()):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(self.path)
            keeper.send(end, [self.name, table], fds)
            return keeper.receive(end)

    def keep(self, table, fds):
        answer, _ = self.ask(table, fds)
        if answer != len(fds):
            raise OSError("the keeper has %s of %d descriptors" % (answer, len(fds)))

    def take(self):
        """The table, or None, and the descriptors; once the last process that had them has ended."""
        table, fds = self.ask(None)
        while table == "busy":
            select.select(fds, [], [])
            table, fds = self.ask(None)
        return table, fds

    def ready(self):
        pass


class Systemd:
    """The store of this service: sd_notify(3), sd_listen_fds(3), without their library."""

    def notify(self, text, fds=()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.connect(os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1))
            socket.send_fds(end, [text.encode()], fds)

    def keep(self, table, fds):
        """They come back in any order, so each has its number in its name."""
        with io.FileIO(os.memfd_create("table"), "r+") as file:
            file.write(json.dumps(table).encode())
            for name, fd in [("table", file.fileno())] + [("memory.%d" % number, fd) for number, fd in enumerate(fds)]:
                self.notify("FDSTOREREMOVE=1\nFDNAME=" + name)
                self.notify("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, [fd])  # else systemd drops what polls as hung up

    def take(self):
        """The same as Keeper's. systemd starts a service when all processes of its last run have ended."""
        names = os.environ.get("LISTEN_FDNAMES", "").split(":")
        if "table" not in names or os.environ["LISTEN_PID"] != str(os.getpid()):
            return None, []
        files = {name: io.FileIO(3 + number) for number, name in enumerate(names)}
        table = json.loads(os.pread(files["table"].fileno(), 1 << 26, 0))
        return table, [files["memory.%d" % number] for number in range(len(files) - 1)]

    def ready(self):
        self.notify("READY=1")
