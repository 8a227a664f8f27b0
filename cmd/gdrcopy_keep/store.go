package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A store is systemd's descriptor store of this service. It has the objects, and a state: a memfd with the JSON of the sets.
// The keeper may be killed after each message: new objects go there first, then the state, then removals of what that lacks.
type store struct {
	id    uint64   // the last state's
	state []byte   // that one
	old   []string // names to be removed; the last is the state's
}

func name(kind string, id uint64) string { return kind + "." + strconv.FormatUint(id, 36) }

// save brings systemd to what the keeper has. What fails goes there with the next change: systemd stores no file twice.
func (s *store) save(state []byte, objects, unused []*object) {
	if len(unused) == 0 && bytes.Equal(state, s.state) {
		return
	}
	var err error
	tell := func(text string, fds ...int) {
		if err == nil {
			err = notify(text, fds...)
		}
	}
	for _, o := range unused {
		s.old = append(s.old, name("o", o.id))
	}
	for _, o := range objects {
		if !o.stored {
			tell("FDSTORE=1\nFDPOLL=0\nFDNAME="+name("o", o.id), o.fd)
			o.stored = err == nil
		}
	}
	file, memErr := unix.MemfdCreate("gdrcopy_keep", unix.MFD_CLOEXEC)
	_, writeErr := unix.Write(file, state)
	defer unix.Close(file)
	s.id++
	err = cmp.Or(err, memErr, writeErr)
	tell("FDSTORE=1\nFDPOLL=0\nFDNAME="+name("s", s.id), file)
	for s.old = append(s.old, name("s", s.id)); err == nil && len(s.old) > 1; s.old = s.old[1:] {
		tell("FDSTOREREMOVE=1\nFDNAME=" + s.old[0])
	}
	if s.state = state; err != nil {
		s.state = nil
		slog.Error("systemd does not store the last change", "error", err)
	}
}

// notify is sd_notify(3).
func notify(text string, fds ...int) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 10})
	return patiently(func() error {
		return unix.Sendmsg(socket, []byte(text), unix.UnixRights(fds...), &unix.SockaddrUnix{Name: path}, 0)
	})
}

// inherited are the descriptors that systemd has started this process with, by name. Not ok: it has them for another one.
func inherited() (named map[string]int, ok bool) {
	named = map[string]int{}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	count, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if pid := os.Getenv("LISTEN_PID"); count > 0 && pid != strconv.Itoa(os.Getpid()) {
		slog.Error("systemd's descriptors, and its store, are for another process: ExecStart has to start gdrcopy_keep itself", "LISTEN_PID", pid)
		return named, false
	}
	for i := range min(count, len(names)) {
		unix.CloseOnExec(3 + i)
		named[names[i]] = 3 + i
	}
	return named, true
}

// restore takes out of named what the last keeper had, if there is a store. A set that is not whole is dropped.
func (k *keeper) restore(named map[string]int) {
	// systemd 254 says in FDSTORE how many descriptors it takes; for older ones the unit does.
	room, _ := strconv.Atoi(cmp.Or(os.Getenv("FDSTORE"), os.Getenv("GDRCOPY_KEEP_FDSTORE")))
	if room <= 0 || os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	// The state needs two. The next keeper gets all names in one variable, of 128 KiB at most: of 8 bytes each, and a colon.
	if room = min(room-2, 14_000); room < k.limit {
		k.limit, k.raise = room, "FileDescriptorStoreMax"
	}
	s := new(store)
	k.store = s
	objects, sets := map[uint64]*object{}, map[string]*set{}
	for name, fd := range named {
		kind, number, _ := strings.Cut(name, ".")
		id, err := strconv.ParseUint(number, 36, 64)
		switch {
		case err == nil && kind == "o":
			objects[id] = &object{fd, id, true}
			k.lastID = max(k.lastID, id)
		case err == nil && kind == "s":
			if s.old = append(s.old, name); id > s.id {
				s.id, sets = id, map[string]*set{}
				if err := json.NewDecoder(io.NewSectionReader(os.NewFile(uintptr(fd), name), 0, 1<<40)).Decode(&sets); err != nil {
					slog.Error("the last keeper's state cannot be read", "error", err)
				}
			}
		default:
			continue
		}
		delete(named, name)
	}
	k.objects = slices.SortedFunc(maps.Values(objects), func(a, b *object) int { return kcmp(a.fd, b.fd) })
	for key, set := range sets {
		lost := 0
		for _, o := range set.objects() {
			if *o = objects[(*o).id]; *o == nil {
				lost++
			}
		}
		if lost > 0 {
			slog.Error("dropped: systemd has lost a part of it", set.attrs("lost", lost)...)
			continue
		}
		k.sets[key], k.lastSet = set, max(k.lastSet, set.Number)
		slog.Info("restored", set.attrs()...)
	}
	k.mu.Lock()
	k.save()
	k.mu.Unlock()
	if rest := len(objects) - len(k.objects); rest > 0 {
		slog.Info("closed descriptors of puts that did not end, or of processes that have ended", "descriptors", rest)
	}
}
