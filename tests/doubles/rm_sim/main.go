// Command rm_sim PROGRAM [ARGUMENT...] runs a program with a simulated NVIDIA driver. It is
// test code: it is no driver, and never ships.
//
// This process becomes the program. A second process is the driver. It gets the requests of the
// program and of its children, by a seccomp listener. It ends when they have all ended.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"gdrapi/tests/doubles/nvrm"

	"golang.org/x/sys/unix"
)

// What the two steps of the driver's start are called as.
const (
	starter = "rm_sim: starter"
	driver  = "rm_sim: driver"
)

func die(what string, err error) {
	fmt.Fprintf(os.Stderr, "rm_sim: %s: %v\n", what, err)
	os.Exit(125)
}

func must(what string, err error) {
	if err != nil {
		die(what, err)
	}
}

func main() {
	runtime.LockOSThread()
	d, err := nvrm.FromEnv(os.LookupEnv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125)
	}
	d.Log = func(line string) { fmt.Fprintln(os.Stderr, line) }
	switch {
	case os.Args[0] == starter:
		// The driver keeps none of the program's files but stderr.
		must("the driver", unix.CloseRange(4, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC))
		must("the driver", command(driver, os.NewFile(3, "socket")).Start())
	case os.Args[0] == driver:
		if listener := receiveFD(3); listener >= 0 {
			serve(d, listener)
		}
	case len(os.Args) < 2:
		fmt.Fprintln(os.Stderr, "usage: rm_sim PROGRAM [ARGUMENT...]")
		os.Exit(125)
	case runtime.GOARCH != "amd64":
		fmt.Fprintln(os.Stderr, "rm_sim: not on this machine")
		os.Exit(125)
	default:
		launch(os.Args[1:])
	}
}

// command is this program under another name, with socket as its file 3. Go must not send signals
// to the thread that waits for the program.
func command(name string, socket *os.File) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Args = []string{name}
	c.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	c.Stderr = os.Stderr
	c.ExtraFiles = []*os.File{socket}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c
}

// startDriver starts the driver. It is not the program's child, as the program may wait for any
// child.
func startDriver() (socket int) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must("socketpair", err)
	theirs := os.NewFile(uintptr(ends[1]), "socket")
	must("the driver", command(starter, theirs).Run())
	theirs.Close()
	return ends[0]
}

func launch(argv []string) {
	path, err := exec.LookPath(argv[0])
	must(argv[0], err)
	socket := startDriver()
	must("setenv", os.Setenv("CUDA_SIM_RM", "1"))
	listener := install()
	must("sendmsg", unix.Sendmsg(socket, []byte{0}, unix.UnixRights(listener), nil, 0))
	unix.Close(listener)
	unix.Close(socket)
	must(argv[0], syscall.Exec(path, argv, os.Environ()))
}

// receiveFD returns -1 if the program was never started.
func receiveFD(socket int) int {
	b, space := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oob, _, _, err := unix.Recvmsg(socket, b, space, unix.MSG_CMSG_CLOEXEC)
	unix.Close(socket)
	if err != nil || n != 1 {
		return -1
	}
	m, err := unix.ParseSocketControlMessage(space[:oob])
	must("the listener", err)
	fds, err := unix.ParseUnixRights(&m[0])
	must("the listener", err)
	return fds[0]
}

// Calls with a path of x86-64: of old ones the path is the first argument. Other machines have other numbers.
const sysStatAt = 262

var old = map[int32]string{2: "open", 4: "stat", 6: "stat", 21: "access"}

// filter sends to the driver: its requests, and calls with a path but those that open a file only
// to write it.
func filter() []unix.SockFilter {
	statement := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	load := func(at uint32) unix.SockFilter { return statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at) }
	ret := func(action uint32) unix.SockFilter { return statement(unix.BPF_RET|unix.BPF_K, action) }
	skipUnless := func(v uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: v}
	}
	const allow, notify = 0x7fff0000, 0x7fc00000
	f := []unix.SockFilter{load(0)}
	// A call goes to the driver if the low half of its argument n & mask is value.
	take := func(nr, n, mask, value uint32) {
		f = append(f, skipUnless(nr, 5), load(16+8*n), statement(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, mask),
			skipUnless(value, 1), ret(notify), load(0))
	}
	take(unix.SYS_IOCTL, 1, 0xff00, 'F'<<8)
	take(unix.SYS_IOCTL, 1, 0xffffff00, 0) // UVM's
	take(unix.SYS_OPENAT, 2, unix.O_WRONLY, 0)
	take(sysStatAt, 3, unix.AT_EMPTY_PATH, 0)
	take(unix.SYS_STATX, 2, unix.AT_EMPTY_PATH, 0)
	for _, nr := range []uint32{unix.SYS_OPENAT2, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2} {
		take(nr, 0, 0, 0)
	}
	for nr, name := range old {
		if name == "open" {
			take(uint32(nr), 1, unix.O_ACCMODE, unix.O_RDWR)
		} else {
			take(uint32(nr), 0, 0, 0)
		}
	}
	f = append(f, ret(allow))
	// Calls of another machine's ABI pass.
	return append([]unix.SockFilter{load(4), skipUnless(unix.AUDIT_ARCH_X86_64, uint8(min(len(f)-1, 255)))}, f...)
}

// install puts this thread under the filter, and gives the listener.
func install() (listener int) {
	const newListener, waitKillable = 1 << 3, 1 << 5
	f := filter()
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	// Root alone may leave this out. Set-user-ID programs then work.
	if os.Geteuid() != 0 {
		must("no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	for _, flags := range []uintptr{newListener | waitKillable, newListener} {
		fd, _, e := unix.Syscall(unix.SYS_SECCOMP, 1 /* SET_MODE_FILTER */, flags, uintptr(unsafe.Pointer(&prog)))
		if e == 0 {
			return int(fd)
		}
		if e != unix.EINVAL || flags == newListener {
			die("seccomp (inside of another rm_sim?)", e)
		}
	}
	return -1
}
