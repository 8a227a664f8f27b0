package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// systemd stands for the store of systemd 252 and 257.
type systemd struct {
	t      *testing.T
	path   string
	socket *net.UnixConn
	heard  chan bool

	mu    sync.Mutex // for what follows
	store map[string]int
	left  int // messages until the keeper counts as killed
}

func newSystemd(t *testing.T) *systemd {
	s := &systemd{t: t, path: filepath.Join(folder(), "notify"), heard: make(chan bool), store: map[string]int{}, left: -1}
	s.socket = must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"}))
	must(0, os.Chmod(s.path, 0o777))
	t.Cleanup(func() { s.socket.Close() })
	go func() {
		for text, control := make([]byte, 4096), make([]byte, 64); ; {
			n, size, _, _, err := s.socket.ReadMsgUnix(text, control)
			if err != nil {
				return
			}
			fd := -1
			messages, _ := unix.ParseSocketControlMessage(control[:size])
			for i := range messages {
				for _, fd = range must(unix.ParseUnixRights(&messages[i])) {
				}
			}
			s.takes(string(text[:n]), fd)
		}
	}()
	return s
}

func (s *systemd) takes(text string, fd int) {
	what, name, _ := strings.Cut(text, "\nFDNAME=")
	if what == "HEARD" {
		s.heard <- true
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case what == "READY=1" || s.left == 0:
		return
	case what == "FDSTORE=1\nFDPOLL=0" && len(name) < 30:
		// A file that it has it does not take again.
		if !slices.ContainsFunc(slices.Collect(maps.Values(s.store)), func(has int) bool { return kcmp(has, fd) == 0 }) {
			s.store[name] = fd
		}
		s.left--
	case what == "FDSTOREREMOVE=1":
		delete(s.store, name)
		s.left--
	default:
		panic(text)
	}
}

// keeps has that stored, and nothing else.
func (s *systemd) keeps(store map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = store
}

// dies has the keeper count as killed after so many messages; -1: never.
func (s *systemd) dies(left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = left
}

// has returns what is there.
func (s *systemd) has() (store map[string]int, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.store), s.left
}

// hears returns when all that was sent is heard.
func (s *systemd) hears() {
	must(0, os.Setenv("NOTIFY_SOCKET", s.path))
	defer os.Unsetenv("NOTIFY_SOCKET")
	must(0, notify("HEARD"))
	<-s.heard
}

// starts starts a keeper with what is stored.
func (s *systemd) starts(before string) *process {
	store, _ := s.has()
	k, names := prepared(s.t, before), slices.Collect(maps.Keys(store))
	for _, name := range names {
		k.ExtraFiles = append(k.ExtraFiles, os.NewFile(uintptr(must(unix.Dup(store[name]))), name))
	}
	k.Env = append(k.Env, "NOTIFY_SOCKET="+s.path, "FDSTORE=700", fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	k.serve()
	for _, file := range k.ExtraFiles {
		file.Close()
	}
	s.hears()
	return k
}

// ends kills a keeper.
func (s *systemd) ends(k *process) {
	k.kill()
	s.hears()
	s.dies(-1)
}

// The keeper is killed after each message to systemd. The next one has the old set or the new one, and its holder.
func TestRestart(t *testing.T) {
	s := newSystemd(t)
	old, oldTexts := files("old", 3)
	_, pidfd := sleeper(t)
	k := s.starts("")
	number := k.dial().put("m@1", 0, pidfd, old).Number
	s.ends(k)
	before, _ := s.has()
	fds, texts := files("new", 3)
	fds[1], texts[1] = old[1], oldTexts[1] // is in both
	seen := map[string]int{}
	for left, all := 0, false; !all; left++ {
		s.keeps(maps.Clone(before))
		k := s.starts("")
		s.dies(left)
		require.Empty(t, k.dial().put("m@1", number, pidfd, fds).Errno)
		s.hears()
		_, rest := s.has()
		all = rest > 0
		s.ends(k)

		k = s.starts("")
		require.Contains(t, k.log(), "restored name=m version=1")
		_, r := k.dial().take("m@1", pidfd, nil)
		require.Equal(t, "EBUSY", r.Errno, "its holder lives")
		sets := k.dial().ask(answer{"op": "list"}).Sets
		got, _ := k.dial().take("m@1", pidfd, answer{"set": sets[0].Number})
		if seen[got[0]]++; sets[0].Number == number {
			require.Equal(t, oldTexts, got)
		} else {
			require.Equal(t, texts, got)
		}
		dropped := strings.Contains(k.log(), "closed descriptors of puts that did not end")
		s.hears()
		require.Equal(t, left > 0 && got[0] == "old0", dropped && got[0] == "old0")
		store, _ := s.has()
		require.Len(t, store, 3+1+1, "files, a pidfd, the state")
		s.ends(k)
	}
	require.Greater(t, seen["old0"], 2)
	require.Greater(t, seen["new0"], 2)
}

// What systemd has lost a part of is no set. What it has for another process is not taken, and what it has no room for is refused.
func TestStore(t *testing.T) {
	s := newSystemd(t)
	fds, texts := files("a", 300)
	holder, pidfd := sleeper(t)
	_, other := sleeper(t)
	k := s.starts("")
	require.Empty(t, k.dial().put("m@1", 0, pidfd, fds).Errno)
	require.Regexp(t, "m@2 has 600 descriptors, .* FileDescriptorStoreMax", k.dial().put("m@2", 0, pidfd, slices.Repeat(fds, 2)).Text)
	s.ends(k)
	before, _ := s.has()
	k = s.starts("LISTEN_PID=1;")
	require.Empty(t, k.dial().put("m@2", 0, pidfd, fds).Errno)
	s.ends(k)
	store, _ := s.has()
	require.Equal(t, before, store)
	holder.kill()
	k = s.starts("")
	got, _ := k.dial().take("m@1", other, nil)
	require.Equal(t, texts, got)
	s.ends(k)
	store, _ = s.has()
	delete(store, name("o", 7))
	s.keeps(store)
	k = s.starts("")
	require.Contains(t, k.log(), "systemd has lost a part of it name=m version=1")
	require.Empty(t, k.states())
	s.hears()
	store, _ = s.has()
	require.Len(t, store, 1, "the state")

	var all sync.WaitGroup // puts at once
	for i := range 20 {
		all.Add(1)
		go func() {
			defer all.Done()
			some, _ := files("b", 20)
			k.dial().put(fmt.Sprint("m@", i), 0, other, some)
		}()
	}
	all.Wait()
	states := k.states()
	s.ends(k)
	require.Equal(t, 20, strings.Count(states, "held 20"))
	require.Equal(t, states, s.starts("").states())
}
