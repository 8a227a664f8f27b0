package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// keepersUser runs the keeper, and whatever has to be a process of its own: Linux lets root have any number of descriptors in flight.
const keepersUser, othersUser = 12345, 54321

var program string // a copy of this one that all users may run

func TestMain(m *testing.M) {
	switch os.Getenv("KEEP_TEST") {
	case "keeper":
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	case "rank":
		rank(os.Args[1], os.Args[2])
		return
	}
	folder := must(os.MkdirTemp("", "keep"))
	program = filepath.Join(folder, "gdrcopy_keep")
	must(0, exec.Command("sh", "-c", `chmod 755 "$0" && cp /proc/$PPID/exe "$1" && chmod 755 "$1"`, folder, program).Run())
	status := m.Run()
	os.RemoveAll(folder)
	os.Exit(status)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// folder is one of the keeper's user.
func folder() string {
	folder := must(os.MkdirTemp(filepath.Dir(program), ""))
	must(0, os.Chmod(folder, 0o755))
	if os.Getuid() == 0 {
		must(0, os.Chown(folder, keepersUser, keepersUser))
	}
	return folder
}

// A process is this program in another role. It is killed at the test's end.
type process struct {
	*exec.Cmd
	t    *testing.T
	path string // of its socket
	mu   sync.Mutex
	said strings.Builder
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// command has shell commands before it, such as ulimit.
func command(t *testing.T, role, before string, args ...string) *process {
	p := &process{t: t, Cmd: exec.Command("sh", append([]string{"-c", "LISTEN_PID=$$; export LISTEN_PID; " + before + ` exec "$@"`, "sh", program}, args...)...)}
	p.Env = append(os.Environ(), "KEEP_TEST="+role)
	p.Stdout, p.Stderr, p.SysProcAttr = p, p, &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		p.SysProcAttr.Credential = &syscall.Credential{Uid: keepersUser, Gid: keepersUser, Groups: []uint32{othersUser}}
	}
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	if p.Process != nil {
		p.Process.Kill()
		p.Wait()
	}
}

// prepared is a keeper that is not started.
func prepared(t *testing.T, before string, args ...string) *process {
	path := filepath.Join(folder(), "socket")
	k := command(t, "keeper", before, append(append([]string{"serve"}, args...), path)...)
	k.path = path
	return k
}

// serving starts a keeper.
func serving(t *testing.T, before string, args ...string) *process {
	return prepared(t, before, args...).serve()
}

func (p *process) serve() *process {
	must(0, p.Start())
	p.until(func() bool { return strings.Contains(p.log(), "serving") })
	return p
}

// until waits for what is to come.
func (p *process) until(is func() bool) {
	require.Eventually(p.t, is, time.Minute, time.Millisecond, p.log())
}

func (p *process) dial() conn {
	end := must(net.Dial("unix", p.path))
	if p.t != nil {
		p.t.Cleanup(func() { end.Close() })
	}
	return conn{end.(*net.UnixConn), patience}
}

// states are a line for each set.
func (p *process) states() string {
	text, c := "", p.dial()
	defer c.Close()
	for _, s := range c.ask(answer{"op": "list"}).Sets {
		text += fmt.Sprintln(s.key(), s.State, s.Count)
	}
	return text
}

// A reply is any answer.
type reply struct {
	refusal
	set
	Want          int
	Load          bool
	Sets, Dropped []set
	fds           []int
}

func (c conn) ask(request answer, fds ...int) (r reply) {
	c.send(request, fds...) // if that fails, there may be a refusal
	r.fds = must(c.receive(&r, maxFDs))
	return r
}

// of completes a request about NAME@VERSION.
func of(which string, more answer) answer {
	name, version, _ := strings.Cut(which, "@")
	request := answer{"op": "take", "name": name, "version": version}
	maps.Copy(request, more)
	return request
}

// put has files kept for the process of a pidfd.
func (c conn) put(which string, set int64, pidfd int, files []int) reply {
	r := c.ask(of(which, answer{"op": "put", "count": len(files), "table": which, "set": set}), pidfd)
	for r.Want > 0 {
		part := files[:min(r.Want, len(files))]
		files = files[len(part):]
		r = c.ask(answer{"op": "fds"}, part...)
	}
	return r
}

// take returns what the files say that come.
func (c conn) take(which string, pidfd int, more answer) (texts []string, r reply) {
	r = c.ask(of(which, more), pidfd)
	for len(texts) < r.Count {
		fds := c.ask(answer{"op": "more"}).fds
		for _, fd := range fds {
			text := make([]byte, 64)
			texts = append(texts, string(text[:must(unix.Pread(fd, text, 0))]))
		}
		closeAll(fds)
	}
	return texts, r
}

// files are memfds, which stand for GPU memory. Each says which one it is.
func files(name string, count int) (fds []int, texts []string) {
	for i := range count {
		texts = append(texts, fmt.Sprint(name, i))
		fds = append(fds, must(unix.MemfdCreate("test", unix.MFD_CLOEXEC)))
		must(unix.Write(fds[i], []byte(texts[i])))
	}
	return fds, texts
}

// sleeper is a process that lives until it is killed, with its pidfd.
func sleeper(t *testing.T) (*process, int) {
	p := &process{t: t, Cmd: exec.Command("sleep", "1000")}
	must(0, p.Start())
	t.Cleanup(p.kill)
	return p, must(unix.PidfdOpen(p.Process.Pid, 0))
}

// room skips a test for which this machine lets a process have too few descriptors. Root may raise that.
func room(t *testing.T, count uint64) {
	var limit unix.Rlimit
	must(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Max = max(limit.Max, count)
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		t.Skipf("it needs %d descriptors: raise the hard limit (ulimit -Hn)", count)
	}
}
