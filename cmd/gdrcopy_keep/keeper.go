package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A set is memory that is kept, whole; or, without descriptors, the right to load it. systemd's store has it as this JSON.
type set struct {
	Number  int64           `json:"set"` // no other put, and no other right, has it
	Name    string          `json:"name"`
	Version string          `json:"version"`
	GPU     string          `json:"gpu"`
	Bytes   uint64          `json:"bytes"`
	Count   int             `json:"count"`
	Since   time.Time       `json:"since"`
	State   string          `json:"state,omitempty"`
	Holders []holder        `json:"holders"` // some may have ended
	Table   json.RawMessage `json:"table,omitempty"`
	Memory  []*object       `json:"memory,omitempty"`
}

func (s *set) key() string { return s.Name + "@" + s.Version }

func (s *set) living() []holder { return slices.DeleteFunc(slices.Clone(s.Holders), holder.ended) }

// objects are the places in s that refer to one.
func (s *set) objects() (places []**object) {
	for i := range s.Memory {
		places = append(places, &s.Memory[i])
	}
	for i := range s.Holders {
		places = append(places, &s.Holders[i].PIDFD)
	}
	return places
}

// about is what all may know of s.
func (s *set) about() set {
	about := *s
	about.Holders, about.Table, about.Memory, about.State = s.living(), nil, nil, "kept"
	for i := range about.Holders {
		about.Holders[i].PIDFD = nil
	}
	if s.Count == 0 {
		about.State = "loading"
	} else if len(about.Holders) > 0 {
		about.State = "held"
	}
	return about
}

// busy refuses what has to wait for the processes that have s.
func (s *set) busy(errno string) error {
	about := s.about()
	return refuse(errno, "%s: %s by %v", s.key(), about.State, about.Holders)
}

// attrs are for a line of the log.
func (s *set) attrs(more ...any) []any {
	return append([]any{"name", s.Name, "version", s.Version, "set", s.Number, "descriptors", s.Count, "bytes", s.Bytes}, more...)
}

// A holder is a process that has a set, or loads it.
type holder struct {
	PIDFD *object `json:"pidfd,omitempty"`
	PID   int     `json:"pid"` // 0 in another PID namespace
	UID   uint32  `json:"uid"`
}

func (h holder) ended() bool    { return ready(h.PIDFD.fd, unix.POLLIN) }
func (h holder) String() string { return fmt.Sprintf("process %d of user %d", h.PID, h.UID) }

// pidOf returns the number of a pidfd's process: 0 in another PID namespace, -1 after its end.
func pidOf(fd int) (int, error) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	_, after, _ := bytes.Cut(text, []byte("\nPid:\t"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return strconv.Atoi(string(line))
}

// An object is a file that is kept.
type object struct {
	fd     int
	id     uint64 // in systemd's store
	stored bool
}

func (o *object) MarshalJSON() ([]byte, error) { return json.Marshal(o.id) }
func (o *object) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &o.id) }

// A keeper has the sets.
type keeper struct {
	limit int    // of descriptors
	raise string // what sets that
	store *store // nil without systemd's

	saving  sync.Mutex      // before mu
	mu      sync.Mutex      // for what follows
	sets    map[string]*set // by key
	clients map[*client]bool
	objects []*object // all, in the order of kcmp(2)
	lastSet int64
	lastID  uint64
}

// adopt makes a descriptor an object. systemd stores no file twice, by whatever names: one that is there already stays that object.
func (k *keeper) adopt(fd int) *object {
	at, found := slices.BinarySearchFunc(k.objects, fd, func(o *object, fd int) int { return kcmp(o.fd, fd) })
	if found {
		unix.Close(fd)
	} else {
		k.lastID++
		k.objects = slices.Insert(k.objects, at, &object{fd: fd, id: k.lastID})
	}
	return k.objects[at]
}

// kcmp compares the files of two descriptors. If that is forbidden, they differ.
func kcmp(a, b int) int {
	self, kcmpFile := uintptr(os.Getpid()), uintptr(0)
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, self, self, kcmpFile, uintptr(a), uintptr(b), 0)
	if errno != 0 {
		return 1
	}
	return []int{0, -1, 1, 1}[order]
}

// save returns when systemd's store has what the keeper has, and what nobody needs any more is closed. Others go on meanwhile.
func (k *keeper) save() {
	k.mu.Unlock()
	defer k.mu.Lock()
	k.saving.Lock()
	defer k.saving.Unlock()
	k.mu.Lock()
	unused := k.unused()
	objects := slices.Clone(k.objects)
	var state []byte
	if k.store != nil {
		state, _ = json.Marshal(k.sets)
	}
	k.mu.Unlock()
	if k.store != nil {
		k.store.save(state, objects, unused)
	}
	for _, o := range unused {
		unix.Close(o.fd)
	}
}

// unused forgets processes that have ended, and takes out the objects that nobody needs any more.
func (k *keeper) unused() (unused []*object) {
	used, sets := map[*object]bool{}, map[*set]bool{}
	for _, s := range k.sets {
		s.Holders = s.living()
		sets[s] = true
	}
	for c := range k.clients {
		sets[c.taken] = true
	}
	for s := range sets {
		for _, o := range s.objects() {
			used[*o] = true
		}
	}
	maps.DeleteFunc(k.sets, func(_ string, s *set) bool { return s.Count == 0 && len(s.Holders) == 0 })
	k.objects = slices.DeleteFunc(k.objects, func(o *object) bool {
		if !used[o] {
			unused = append(unused, o)
		}
		return !used[o]
	})
	return unused
}

// add gives a set its number and its place.
func (k *keeper) add(s *set) {
	k.lastSet++
	s.Number, s.Since = k.lastSet, time.Now().UTC().Truncate(time.Second)
	k.sets[s.key()] = s
}

// fits refuses descriptors for which there is no room beside the margin.
func (k *keeper) fits(what string, count, margin int) error {
	if room := k.limit - margin - len(k.objects); count > room {
		return refuse("EMFILE", "%s has %d descriptors, and the keeper has room for %d: raise its %s", what, count, max(room, 0), k.raise)
	}
	return nil
}

// list is about all sets, and all that are loaded.
func (k *keeper) list() []set {
	list := []set{}
	for _, s := range k.sets {
		if about := s.about(); s.Count > 0 || len(about.Holders) > 0 {
			list = append(list, about)
		}
	}
	slices.SortFunc(list, func(a, b set) int { return cmp.Compare(a.key(), b.key()) })
	return list
}
