package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"gdrapi/tests/doubles/nvrm"

	"golang.org/x/sys/unix"
)

// file is an open file. The program has the read end of a pipe, and the driver has the write end,
// which shows when the last copy of the read end is closed.
type file struct {
	of  *nvrm.File
	ino uint64 // of the pipe
}

type server struct {
	driver   *nvrm.Driver
	listener int // where the system calls come from
	events   int
	files    map[int]file // by the write end
}

// The kernel's structs; their sizes are looked at below.
type (
	notif struct {
		id   uint64
		pid  uint32
		_    uint32 // flags
		nr   int32
		_    uint32 // the machine's ABI, at which the filter has looked
		_    uint64 // address
		args [6]uint64
	}
	response struct {
		id    uint64
		val   int64
		error int32
		flags uint32
	}
	addFD struct {
		id                             uint64
		flags, from, there, thereFlags uint32
	}
)

func ioctl[T any](fd int, nr uint32, arg *T) (int, error) {
	cmd := uintptr(3<<30 | uint32(unsafe.Sizeof(*arg))<<16 | '!'<<8 | nr)
	if nr == 3 {
		cmd &^= 2 << 30 // ADDFD is but written
	}
	for {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cmd, uintptr(unsafe.Pointer(arg)))
		if e == 0 {
			return int(r), nil
		}
		if e != unix.EINTR || nr == 0 {
			return -1, e
		}
	}
}

// caller is the thread that waits for an answer.
type caller struct {
	*server
	id  uint64 // of the notification
	tid int
	fd  int // the descriptor of the request
}

func (c *caller) Read(addr uint64, b []byte) error { return c.transfer(unix.ProcessVMReadv, addr, b) }

func (c *caller) Write(addr uint64, b []byte) error { return c.transfer(unix.ProcessVMWritev, addr, b) }

func (c *caller) transfer(how func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	here := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := how(c.tid, here, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err != nil || n != len(b) {
		return unix.EFAULT
	}
	return nil
}

func (c *caller) IsOf(process int) bool {
	return c.tid == process || unix.Access(fmt.Sprintf("/proc/%d/task/%d", process, c.tid), unix.F_OK) == nil
}

func (c *caller) Process() int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.tid))
	_, after, _ := bytes.Cut(status, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	if n, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil {
		return n
	}
	return c.tid
}

func (c *caller) File(fd int) *nvrm.File {
	var st unix.Stat_t
	if fd < 0 || unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", c.tid, fd), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil
	}
	for _, f := range c.files {
		if f.ino == st.Ino {
			return f.of
		}
	}
	return nil
}

func (c *caller) Give(fd int, cloexec bool) (int, error) {
	add := addFD{id: c.id, from: uint32(fd)}
	if cloexec {
		add.thereFlags = unix.O_CLOEXEC
	}
	return ioctl(c.listener, 3, &add)
}

func (c *caller) Replace(fd int) (int, error) {
	const setFD = 1
	add := addFD{id: c.id, flags: setFD, from: uint32(fd), there: uint32(c.fd), thereFlags: unix.O_CLOEXEC}
	_, err := ioctl(c.listener, 3, &add)
	return c.fd, err
}

func (c *caller) GiveFile(f *nvrm.File) (int, error) { return c.give(f, false) }

// give gives a file to the caller. It is released when all copies of it are closed.
func (c *caller) give(f *nvrm.File, cloexec bool) (int, error) {
	var ends [2]int
	var st unix.Stat_t
	must("a pipe", unix.Pipe2(ends[:], unix.O_CLOEXEC))
	must("a pipe", unix.Fstat(ends[0], &st))
	must("epoll", unix.EpollCtl(c.events, unix.EPOLL_CTL_ADD, ends[1], &unix.EpollEvent{Fd: int32(ends[1])}))
	c.files[ends[1]] = file{f, st.Ino}
	there, err := c.Give(ends[0], cloexec)
	unix.Close(ends[0])
	return there, err
}

func (s *server) release(end int) {
	s.driver.Close(s.files[end].of)
	delete(s.files, end)
	unix.Close(end)
}

// answer lets the caller go on. passes has the kernel make the call.
func (c *caller) answer(err error, value int, passes bool) {
	r := response{id: c.id, val: int64(value)}
	if err != nil {
		e, _ := err.(unix.Errno)
		r.error, r.val = -int32(e), 0
	}
	if passes {
		r.flags = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	// The caller may have been killed meanwhile.
	if _, err := ioctl(c.listener, 1, &r); err != nil && err != unix.ENOENT {
		die("answer", err)
	}
}

// path is the string at addr, cut to the buffer. No path of the driver is that long.
func (c *caller) path(addr uint64) string {
	b := make([]byte, 32)
	n := min(4096-addr%4096, uint64(len(b)))
	if c.Read(addr, b[:n]) == nil && bytes.IndexByte(b[:n], 0) < 0 {
		_ = c.Read(addr+n, b[n:])
	}
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// device finds what a path names; err: the driver lacks it. Of another file kind is 0.
func (s *server) device(path string) (kind nvrm.Kind, g *nvrm.GPU, err error) {
	number, found := strings.CutPrefix(path, "/dev/nvidia")
	switch number {
	case "ctl":
		return nvrm.Control, nil, nil
	case "-uvm":
		return nvrm.UVM, nil, nil
	}
	n, bad := strconv.ParseUint(number, 10, 31)
	if !found || bad != nil {
		return 0, nil, nil
	}
	if g = s.driver.ByMinor(uint32(n)); g == nil {
		err = unix.ENOENT
	}
	return nvrm.Device, g, err
}

func (c *caller) open(kind nvrm.Kind, g *nvrm.GPU, flags uint64) (int, error) {
	if n := c.driver.Fault(nil, "OPEN"); n != 0 {
		return 0, unix.Errno(n)
	}
	if kind == nvrm.Device && c.driver.Fault(nil, "LOST") != 0 {
		return 0, unix.ENODEV
	}
	return c.give(c.driver.Open(kind, g), flags&unix.O_CLOEXEC != 0)
}

const (
	major        = 195
	controlMinor = 255
	uvmMajor     = 510
)

// numbers are the device's.
func numbers(kind nvrm.Kind, g *nvrm.GPU) (uint32, uint32) {
	switch kind {
	case nvrm.UVM:
		return uvmMajor, 0
	case nvrm.Control:
		return major, controlMinor
	}
	return major, g.Minor
}

func (c *caller) stat(kind nvrm.Kind, g *nvrm.GPU, addr uint64) error {
	st := unix.Stat_t{Mode: unix.S_IFCHR | 0o666, Nlink: 1, Blksize: 4096, Rdev: unix.Mkdev(numbers(kind, g))}
	return c.Write(addr, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)))
}

func (c *caller) statx(kind nvrm.Kind, g *nvrm.GPU, addr uint64) error {
	major, minor := numbers(kind, g)
	st := unix.Statx_t{Mask: unix.STATX_BASIC_STATS, Mode: unix.S_IFCHR | 0o666, Nlink: 1, Blksize: 4096,
		Rdev_major: major, Rdev_minor: minor}
	return c.Write(addr, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)))
}

// fdInfo is what a path below /proc/self/fdinfo says of a file of the driver's; nil: another path.
func (c *caller) fdInfo(path string) []byte {
	number, found := strings.CutPrefix(path, "/proc/self/fdinfo/")
	fd, bad := strconv.Atoi(number)
	if !found || bad != nil {
		return nil
	}
	if f := c.File(fd); f != nil {
		return c.driver.FDInfo(f)
	}
	return nil
}

// giveText gives the caller a file with that text.
func (c *caller) giveText(text []byte) (int, error) {
	fd, err := unix.MemfdCreate("fdinfo", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, text, 0); err != nil {
		return 0, err
	}
	return c.Give(fd, true)
}

// withPath answers a call with a path.
func (c *caller) withPath(n *notif) {
	name, isOld := old[n.nr]
	args := n.args[:]
	if !isOld {
		args = args[1:] // the first one is a folder
	}
	path := c.path(args[0])
	kind, g, err := c.device(path)
	fd := 0
	if n.nr == unix.SYS_OPENAT {
		if text := c.fdInfo(path); text != nil {
			fd, err = c.giveText(text)
			c.answer(err, fd, false)
			return
		}
	}
	switch {
	case err != nil:
	case kind == 0:
		c.answer(nil, 0, true)
		return
	case name == "open", n.nr == unix.SYS_OPENAT:
		fd, err = c.open(kind, g, args[1])
	case n.nr == unix.SYS_OPENAT2:
		var flags [8]byte
		_ = c.Read(args[1], flags[:])
		fd, err = c.open(kind, g, *(*uint64)(unsafe.Pointer(&flags)))
	case name == "stat", n.nr == sysStatAt:
		err = c.stat(kind, g, args[1])
	case n.nr == unix.SYS_STATX:
		err = c.statx(kind, g, args[3])
	}
	c.answer(err, fd, false)
}

func (c *caller) request(n *notif) {
	cmd := uint32(n.args[1])
	c.fd = int(int32(n.args[0]))
	f := c.File(c.fd)
	switch {
	case f == nil && nvrm.IsMMap(cmd):
		c.answer(unix.ENOTTY, 0, false)
		return
	case f == nil:
		c.answer(nil, 0, true)
		return
	}
	arg := make([]byte, c.driver.SizeOn(f, cmd))
	err := c.Read(n.args[2], arg)
	if err == nil {
		err = c.driver.Request(c, f, cmd, arg)
	}
	if err == nil {
		err = c.Write(n.args[2], arg)
	}
	c.answer(err, 0, false)
}

// call serves one system call.
func (s *server) call() {
	n := new(notif)
	if _, err := ioctl(s.listener, 0, n); err != nil {
		// The caller was interrupted or killed earlier.
		if err != unix.ENOENT && err != unix.EINTR {
			die("receive", err)
		}
		return
	}
	c := &caller{server: s, id: n.id, tid: int(n.pid)}
	if n.nr == unix.SYS_IOCTL {
		c.request(n)
	} else {
		c.withPath(n)
	}
}

// serve serves until no process is left that can make a call.
func serve(d *nvrm.Driver, listener int) {
	var sizes [3]uint16
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, 3 /* GET_NOTIF_SIZES */, 0, uintptr(unsafe.Pointer(&sizes)))
	if e != 0 || uintptr(sizes[0]) != unsafe.Sizeof(notif{}) || uintptr(sizes[1]) != unsafe.Sizeof(response{}) {
		die("another kernel's seccomp", e)
	}
	events, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must("epoll", err)
	s := &server{driver: d, listener: listener, events: events, files: map[int]file{}}
	must("epoll", unix.EpollCtl(events, unix.EPOLL_CTL_ADD, listener, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(listener)}))
	list := make([]unix.EpollEvent, 16)
	for {
		n, err := unix.EpollWait(events, list, -1)
		if err != nil && err != unix.EINTR {
			die("wait", err)
		}
		ready, released := false, false
		for _, e := range list[:max(n, 0)] {
			switch {
			case int(e.Fd) != listener:
				s.release(int(e.Fd))
				released = true
			case e.Events&unix.EPOLLIN == 0:
				return
			default:
				ready = true
			}
		}
		// Release the files that a program has closed before this call.
		if ready && !released {
			s.call()
		}
	}
}
