package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A client is who has connected. It holds the keeper's mu, except while it waits.
type client struct {
	conn
	*keeper
	fd    int // of the connection
	pid   int32
	uid   uint32
	came  []int // descriptors that nobody has adopted
	lost  bool  // where the next message begins
	taken *set  // what it gets
	given int   // of that
}

// A request is a message of a client.
type request struct {
	Op string `json:"op"`
	set
	All     bool    `json:"all"`
	Load    bool    `json:"load"`
	Timeout float64 `json:"timeout"` // seconds
}

type answer map[string]any

// converse answers a client's requests.
func (k *keeper) converse(end conn, anyone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := &client{conn: end, keeper: k, taken: new(set)}
	k.clients[c] = true
	var r request
	err := c.admit(anyone)
	for err == nil && !c.lost {
		r = request{}
		if err = c.hear(&r, maxFDs); err == nil {
			err = c.tell(&r, c.do(&r))
		}
		closeAll(c.came)
		c.came = nil
	}
	c.tell(&r, err)
	c.Close()
	delete(k.clients, c)
	k.save()
}

// tell tells the log, and a client, of an error; after a refusal the client may go on.
func (c *client) tell(r *request, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	text := func(any string) string { return fmt.Sprintf("%.128s", any) } // not a whole message
	slog.Warn("failed", "op", text(r.Op), "name", text(r.Name), "version", text(r.Version), "error", err, "pid", c.pid, "uid", c.uid)
	var no *refusal
	if !errors.As(err, &no) {
		return io.EOF
	}
	return c.say(no)
}

func (c *client) say(v any, fds ...int) error {
	c.mu.Unlock()
	defer c.mu.Lock()
	return c.send(v, fds...)
}

func (c *client) hear(r *request, max int) error {
	c.mu.Unlock()
	fds, err := c.receive(r, max)
	c.mu.Lock()
	c.came, c.lost = append(c.came, fds...), err != nil
	return err
}

// admit refuses users other than root and the keeper's, unless it is for the socket's mode to do so.
func (c *client) admit(anyone bool) error {
	raw, _ := c.SyscallConn() // c is open
	raw.Control(func(fd uintptr) { c.fd = int(fd) })
	peer, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	c.pid, c.uid = peer.Pid, peer.Uid
	if !anyone && c.uid != 0 && int(c.uid) != os.Getuid() {
		return refuse("EACCES", "this keeper is user %d's, not user %d's", os.Getuid(), c.uid)
	}
	return nil
}

func (c *client) do(r *request) error {
	switch r.Op {
	case "put":
		return c.put(r)
	case "take":
		return c.take(r)
	case "more":
		return c.more()
	case "drop":
		return c.drop(r)
	case "list":
		return c.say(answer{"ok": true, "sets": c.list()})
	}
	return refuse("EINVAL", "there is no request %q", r.Op)
}

// Names can be shown on a line, and that of a set and its version be given to drop.
var names = regexp.MustCompile(`^[^@\pC\p{Zl}\p{Zp}]{1,128}@[^\pC\p{Zl}\p{Zp}]{0,128}$`)

// check refuses a put or take with a wrong name, or without a pidfd.
func (c *client) check(r *request) error {
	if strings.Contains(r.Name, "@") || !names.MatchString(r.key()) || !names.MatchString("gpu@"+r.GPU) || len(r.Table) > maxMessage-4096 {
		return refuse("EINVAL", "a name, without @, a version and a gpu are at most 128 printable characters, a table 16 MiB less 4 KiB")
	}
	for _, fd := range c.came {
		if _, err := pidOf(fd); err != nil {
			return refuse("EBADF", "a descriptor came that is no pidfd")
		}
	}
	if len(c.came) == 0 {
		return refuse("ESRCH", "no pidfd came: send that of pidfd_open(getpid())")
	}
	return nil
}

// put keeps a set, once all of it has come.
func (c *client) put(r *request) error {
	if err := c.check(r); err != nil {
		return err
	}
	for pidfds := len(c.came); ; {
		// At the end, too: others go on meanwhile.
		if s := c.sets[r.key()]; s != nil && s.Number != r.Number && len(s.living()) > 0 {
			return s.busy("EBUSY")
		}
		if r.Count < 1 {
			return refuse("EINVAL", "a set has one descriptor at least")
		}
		if err := c.fits(r.key(), r.Count, 128); err != nil {
			return err
		}
		rest := pidfds + r.Count - len(c.came)
		if rest == 0 {
			s := &set{Name: r.Name, Version: r.Version, GPU: r.GPU, Bytes: r.Bytes, Count: r.Count, Table: r.Table}
			for _, fd := range c.came[pidfds:] {
				s.Memory = append(s.Memory, c.adopt(fd))
			}
			c.came = c.came[:pidfds]
			c.add(s)
			return c.has(s, "put", answer{"ok": true, "set": s.Number})
		}
		before, want, part := len(c.came), min(rest, maxFDs), request{}
		err := c.say(answer{"ok": true, "want": want})
		if err == nil {
			err = c.hear(&part, want)
		}
		if err == nil && (part.Op != "fds" || len(c.came) == before) {
			err = refuse("EPROTO", "%q came with %d descriptors; \"fds\" was asked for, with 1 to %d", part.Op, len(c.came)-before, want)
		}
		if err != nil {
			return fmt.Errorf("a put did not end, %d of %d descriptors came: %w", len(c.came)-pidfds, r.Count, err)
		}
	}
}

// take gives a set, or the right to load it, once the processes that have it have ended.
func (c *client) take(r *request) error {
	c.taken, c.given = new(set), 0
	if err := c.check(r); err != nil {
		return err
	}
	for end := time.Now().Add(time.Duration(min(r.Timeout, 1e9) * float64(time.Second))); !ready(c.fd, unix.POLLRDHUP); {
		s := c.sets[r.key()]
		if s == nil || s.Number == r.Number || len(s.living()) == 0 {
			return c.grant(r, s)
		}
		if r.Timeout <= 0 {
			return s.busy("EBUSY")
		}
		if time.Now().After(end) {
			return s.busy("ETIMEDOUT")
		}
		c.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		c.mu.Lock()
	}
	return io.EOF
}

// grant gives s, if there is one, which is the client's already, or nobody's.
func (c *client) grant(r *request, s *set) error {
	if err := c.fits("a take", len(c.came), 64); err != nil {
		return err
	}
	if s == nil || s.Count == 0 && s.Number != r.Number {
		if !r.Load {
			return refuse("ENOENT", "%s is not kept", r.key())
		}
		s = &set{Name: r.Name, Version: r.Version}
		c.add(s)
	}
	if s.Count == 0 {
		return c.has(s, "load", answer{"ok": true, "set": s.Number, "load": true})
	}
	c.taken = s
	return c.has(s, "take", answer{"ok": true, "set": s.Number, "count": s.Count, "gpu": s.GPU, "bytes": s.Bytes, "table": s.Table})
}

// has makes the processes that came holders of s, and tells the client.
func (c *client) has(s *set, what string, reply answer) error {
	s.Holders = s.living()
	for _, fd := range c.came {
		pid, _ := pidOf(fd)
		if pid > 0 && slices.ContainsFunc(s.Holders, func(h holder) bool { return h.PID == pid }) {
			unix.Close(fd)
		} else {
			s.Holders = append(s.Holders, holder{c.adopt(fd), max(pid, 0), c.uid})
		}
	}
	c.came = nil
	slog.Info(what, s.attrs("pid", c.pid, "uid", c.uid)...)
	c.save() // before the answer: a restart undoes nothing that a client was told
	return c.say(reply)
}

// more gives the next descriptors of what was taken.
func (c *client) more() error {
	var fds []int
	for ; c.given < c.taken.Count && len(fds) < maxFDs; c.given++ {
		fds = append(fds, c.taken.Memory[c.given].fd)
	}
	if fds == nil {
		return refuse("EPROTO", "there is no more to be given")
	}
	return c.say(answer{"ok": true, "fds": len(fds)}, fds...)
}

// drop gives up a set, or all versions of it. Processes that have one keep it.
func (c *client) drop(r *request) error {
	dropped := slices.DeleteFunc(c.list(), func(s set) bool { return s.Name != r.Name || s.Version != r.Version && !r.All })
	if len(dropped) == 0 {
		return refuse("ENOENT", "%s is not kept", r.key())
	}
	for _, s := range dropped {
		delete(c.sets, s.key())
		slog.Info("drop", s.attrs("pid", c.pid, "uid", c.uid)...)
	}
	c.save()
	return c.say(answer{"ok": true, "dropped": dropped})
}
