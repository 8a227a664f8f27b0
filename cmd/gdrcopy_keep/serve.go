package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// serve keeps what clients put, until a signal.
func serve(path, group string) error {
	signal.Ignore(unix.SIGPIPE) // of a log that nobody reads any more
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	var limit unix.Rlimit // whose soft one Go's runtime has raised
	unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	// Sets are numbered from the clock on, so that a keeper that lost all does not give the numbers of the last one.
	k := &keeper{limit: int(min(limit.Cur, 1<<30)), raise: "LimitNOFILE (ulimit -n)", sets: map[string]*set{}, clients: map[*client]bool{}, lastSet: time.Now().UnixMilli()}
	named, ok := inherited()
	if ok {
		k.restore(named)
	}
	listener, err := listen(named, path, group)
	if err != nil {
		return err
	}
	slog.Info("serving", "socket", listener.Addr().String(), "limit", k.limit, "stored", k.store != nil)
	go func() {
		for {
			end, err := listener.AcceptUnix()
			if err == nil {
				go k.converse(conn{end, patience}, group != "")
				continue
			}
			slog.Error("accept", "error", err) // as EMFILE: a client that goes makes room
			time.Sleep(100 * time.Millisecond)
		}
	}()
	if err := notify("READY=1"); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	<-end
	return nil
}

// listen takes systemd's socket, or makes one at path.
func listen(named map[string]int, path, group string) (*net.UnixListener, error) {
	for name, fd := range named {
		if listener, _ := net.FileListener(os.NewFile(uintptr(fd), name)); listener != nil && listener.Addr().Network() == "unix" {
			return listener.(*net.UnixListener), nil
		}
		slog.Warn("systemd gave what is no stream socket of AF_UNIX to listen on", "name", name)
	}
	if path == "" {
		return nil, errors.New("systemd gave no socket: name one")
	}
	path, err := filepath.Abs(path) // a name with @ first would be of no file
	if err != nil {
		return nil, err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	// Of keepers that start at once, one goes on.
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%s is locked, as by a keeper that starts: %w", folder.Name(), err)
	}
	if file, err := os.Lstat(path); err == nil && file.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%q is no socket, and is not replaced", path)
	}
	if end, err := net.DialTimeout("unix", path, time.Second); err == nil {
		end.Close()
		return nil, fmt.Errorf("%s is a living keeper's", path)
	} else if errors.Is(err, unix.ECONNREFUSED) {
		os.Remove(path) // its keeper has ended
	}
	unix.Umask(0o177)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil || group == "" {
		return listener, err
	}
	if found, err := user.LookupGroup(group); err == nil {
		group = found.Gid
	}
	gid, err := strconv.ParseUint(group, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("there is no group %q", group)
	}
	return listener, errors.Join(os.Chown(path, -1, int(gid)), os.Chmod(path, 0o660))
}
