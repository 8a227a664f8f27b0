package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTakesWait(t *testing.T) {
	k := serving(t, "")
	fds, texts := files("a", 3)
	first, firstFD := sleeper(t)
	worker, workerFD := sleeper(t)
	_, second := sleeper(t)
	number := k.dial().put("m@1", 0, firstFD, fds).Number
	require.Equal(t, "m@1 held 3\n", k.states())

	_, r := k.dial().take("m@1", second, nil)
	require.Equal(t, "EBUSY", r.Errno)
	require.Equal(t, fmt.Sprintf("m@1: held by [process %d of user %d]", first.Process.Pid, os.Getuid()), r.Text)
	_, r = k.dial().take("m@1", second, answer{"timeout": 0.05})
	require.Equal(t, "ETIMEDOUT", r.Errno)
	require.Equal(t, "EBUSY", k.dial().put("m@1", 0, second, fds).Errno)
	_, r = k.dial().take("m@2", second, nil)
	require.Equal(t, "ENOENT", r.Errno)
	for range 2 { // who has it may take it again, and name a worker
		got, _ := k.dial().take("m@1", workerFD, answer{"set": number})
		require.Equal(t, texts, got)
	}

	taken, gone := make(chan []string), k.dial()
	require.NoError(t, gone.send(of("m@1", answer{"op": "take", "timeout": 60}), second))
	gone.Close() // does not get it, though its process lives
	go func() {
		got, _ := k.dial().take("m@1", second, answer{"timeout": 60})
		taken <- got
	}()
	first.kill()
	_, r = k.dial().take("m@1", second, nil)
	require.Contains(t, r.Text, fmt.Sprintf("by [process %d ", worker.Process.Pid))
	worker.kill()
	require.Equal(t, texts, <-taken)
}

func TestOneLoads(t *testing.T) {
	k := serving(t, "")
	fds, texts := files("a", 1)
	first, firstFD := sleeper(t)
	second, secondFD := sleeper(t)
	_, third := sleeper(t)
	load := answer{"load": true, "timeout": 0}
	_, r := k.dial().take("m", firstFD, load)
	require.True(t, r.Load)
	_, r = k.dial().take("m", secondFD, load)
	require.Equal(t, "EBUSY", r.Errno)
	require.Contains(t, r.Text, fmt.Sprintf("m@: loading by [process %d ", first.Process.Pid))
	first.kill()
	require.Empty(t, k.states())
	_, r = k.dial().take("m", secondFD, load)
	require.True(t, r.Load)
	require.Equal(t, "EBUSY", k.dial().put("m", 0, third, fds).Errno)
	require.Empty(t, k.dial().put("m", r.Number, secondFD, fds).Errno)
	second.kill()
	got, _ := k.dial().take("m", third, load)
	require.Equal(t, texts, got)
}

// A put that ends after any of its messages changes nothing.
func TestHalfPut(t *testing.T) {
	k := serving(t, "")
	fds, texts := files("old", 300)
	holder, pidfd := sleeper(t)
	k.dial().put("m@1", 0, pidfd, fds)
	holder.kill()
	_, pidfd = sleeper(t)
	for messages := range 3 {
		c := k.dial()
		r := c.ask(of("m@1", answer{"op": "put", "count": 900}), pidfd)
		for range messages {
			r = c.ask(answer{"op": "fds"}, fds[:r.Want]...)
		}
		c.Close()
		k.until(func() bool { return strings.Contains(k.log(), fmt.Sprintf("did not end, %d of 900", messages*maxFDs)) })
		require.Equal(t, "m@1 kept 300\n", k.states())
	}
	got, _ := k.dial().take("m@1", pidfd, nil)
	require.Equal(t, texts, got)
}

// rank puts a set and takes it, as one of several servers.
func rank(path, name string) {
	k := &process{path: path}
	c, pidfd := k.dial(), must(unix.PidfdOpen(os.Getpid(), 0))
	fds, texts := files(name, 600)
	// More than the user may have in flight is, for a while.
	pair := must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0))
	for unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fds[:maxFDs]...), nil, unix.MSG_DONTWAIT) == nil {
	}
	time.AfterFunc(100*time.Millisecond, func() { closeAll(pair[:]) })
	r := c.put(name, 0, pidfd, fds)
	closeAll(fds)
	if r.Text == "" {
		got, _ := c.take(name, pidfd, answer{"set": r.Number})
		r.Text = fmt.Sprint("whole: ", slices.Equal(texts, got))
	}
	fmt.Print(r.Text)
}

func TestRanks(t *testing.T) {
	room(t, 20000)
	k := serving(t, "ulimit -Sn 1024; ulimit -Hn 20000;")
	var ranks []*process
	for i := range 8 {
		ranks = append(ranks, command(t, "rank", "ulimit -n 1024;", k.path, fmt.Sprint("rank", i)))
		must(0, ranks[i].Start())
	}
	for _, r := range ranks {
		r.Wait()
		require.Equal(t, "whole: true", r.log())
	}
}

func TestLimits(t *testing.T) {
	room(t, 20000)
	fds, texts := files("a", 600)
	for _, hard := range []int{1024, 20000} {
		k := serving(t, fmt.Sprintf("ulimit -Sn 500; ulimit -Hn %d;", hard))
		holder, pidfd := sleeper(t)
		_, other := sleeper(t)
		k.dial().put("m@1", 0, pidfd, fds)
		r := k.dial().put("m@2", 0, pidfd, slices.Repeat(fds, 6)[:3400])
		if hard == 1024 {
			require.Regexp(t, "m@2 has 3400 descriptors, .* raise its LimitNOFILE", r.Text)
			ends := []conn{}
			for range 600 {
				ends = append(ends, k.dial())
			}
			k.until(func() bool { return strings.Contains(k.log(), "too many open files") })
			for _, c := range ends {
				c.Close()
			}
		} else {
			require.Equal(t, "m@1 held 600\nm@2 held 3400\n", k.states())
		}
		holder.kill()
		got, _ := k.dial().take("m@1", other, nil)
		require.Equal(t, texts, got)
	}
}

func TestNoLeak(t *testing.T) {
	k := serving(t, "")
	open := func() int { return len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", k.Process.Pid)))) }
	fds, texts := files("a", 2)
	holder, pidfd := sleeper(t)
	before, set := open(), int64(0)
	for range 10000 {
		c := k.dial()
		set = c.put("m", set, pidfd, fds).Number
		again := must(unix.PidfdOpen(holder.Process.Pid, 0))
		got, _ := c.take("m", again, answer{"set": set})
		require.Equal(t, texts, got)
		unix.Close(again)
		c.Close()
	}
	k.until(func() bool { return open() == before+3 }) // with a pidfd
	holder.kill()
	k.until(func() bool { return k.states() == "m@ kept 2\n" && open() == before+2 })
}

func TestNonsense(t *testing.T) {
	k := serving(t, "")
	fds, texts := files("a", 3)
	_, pidfd := sleeper(t)
	number := k.dial().put("m", 0, pidfd, fds).Number
	for range 40 {
		k.dial().Write([]byte{7}) // and no more: others do not wait for these
	}
	random := rand.New(rand.NewSource(1))
	words := strings.Fields(`{"op": "put" "take" "drop" ,"name":"x" ,"count": 9 -1 1e99 { } [[ ,"set": null ,"holders":[{"pidfd":1}] ,"memory":[1] ` + "\xff")
	for i := range 1500 {
		text := ""
		for range random.Intn(7) {
			text += words[random.Intn(len(words))]
		}
		size := len(text)
		if i%10 == 0 {
			size = random.Intn(1 << 31)
		}
		c := k.dial()
		c.WriteMsgUnix(append([]byte{byte(size), byte(size >> 8), byte(size >> 16), byte(size >> 24)}, text...),
			unix.UnixRights(slices.Repeat(fds, 80)[:random.Intn(240)]...), nil)
		c.CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
	}
	for _, name := range []string{"", "a\nb", "a\u2028b", strings.Repeat("a", 129), "m@a\nb"} {
		require.Equal(t, "EINVAL", k.dial().put(name, 0, pidfd, fds).Errno, "%q", name)
	}
	c := k.dial()
	require.Equal(t, "EINVAL", c.put("n", 0, pidfd, nil).Errno)
	other, otherTexts := files("b", 3)
	otherNumber := k.dial().put("o", 0, pidfd, other).Number
	require.Equal(t, "EINVAL", c.put("n", 0, pidfd, nil).Errno) // closes nothing of the others'
	gotOther, _ := k.dial().take("o", pidfd, answer{"set": otherNumber})
	require.Equal(t, otherTexts, gotOther)
	k.dial().ask(of("o", answer{"op": "drop"}))
	require.Equal(t, 1, c.ask(of("n", answer{"op": "put", "count": 1}), pidfd).Want)
	require.Equal(t, "EPROTO", c.ask(answer{"op": "fds"}, fds[:2]...).Errno)
	require.Equal(t, "ESRCH", k.dial().ask(of("n", answer{"load": true})).Errno)
	require.Equal(t, "EBADF", k.dial().put("n", 0, fds[0], fds).Errno)
	require.Equal(t, "EMSGSIZE", k.dial().put(strings.Repeat("a", maxMessage), 0, pidfd, fds).Errno)
	require.Less(t, len(k.dial().ask(answer{"op": strings.Repeat("<", 1<<20)}).Text), 1<<15)
	table, put := strings.Repeat("<", maxMessage-4097), answer{"op": "put", "count": 1}
	for put["table"] = table; k.dial().ask(of("n", put), pidfd).Errno == "EINVAL"; {
		put["table"] = table[1:]
	}
	c = k.dial()
	c.ask(of("n", put), pidfd)
	kept := c.ask(answer{"op": "fds"}, fds[0])
	require.Len(t, c.ask(of("n", answer{"set": kept.Number}), pidfd).Table, maxMessage-4096)
	c.ask(of("n", answer{"op": "drop"}))
	c.ask(of("n", put), pidfd)
	require.Equal(t, "EPROTO", c.ask(answer{"op": "fds"}, fds...).Errno)
	_, err := c.receive(new(reply), 0)
	require.Error(t, err) // no answer to the rest of what was not understood
	require.Equal(t, "m@ held 3\n", k.states())
	got, _ := k.dial().take("m", pidfd, answer{"set": number})
	require.Equal(t, texts, got)
}

func TestClosedLog(t *testing.T) {
	r, w, err := os.Pipe()
	must(0, err)
	silent := prepared(t, "")
	silent.Stdout, silent.Stderr = w, w
	must(0, silent.Start())
	silent.until(func() bool { return run([]string{"check", silent.path}, io.Discard, io.Discard) == 0 })
	must(0, r.Close())
	require.Equal(t, "EINVAL", silent.dial().ask(answer{"op": "x"}).Errno)
}

func TestSockets(t *testing.T) {
	k := serving(t, "")
	fails := func(path string) string {
		p := command(t, "keeper", "", "serve", path)
		require.Error(t, p.Run())
		return p.log()
	}
	ask := func(args ...string) int {
		return run(append(args[:1:1], append([]string{k.path}, args[1:]...)...), io.Discard, io.Discard)
	}
	require.Contains(t, fails(""), "name one")
	require.Contains(t, fails(k.path), "a living keeper's")
	must(0, k.Process.Signal(unix.SIGSTOP))
	dropped := make(chan int)
	go func() { dropped <- ask("drop", "m") }()
	require.Contains(t, fails(k.path), "a living keeper's")
	require.Equal(t, 3, ask("check"))
	must(0, k.Process.Signal(unix.SIGCONT))
	require.Equal(t, 4, <-dropped, "it waits longer than a check")
	require.Equal(t, 0, ask("check"))
	must(0, os.Symlink(k.path, k.path+"-link"))
	must(0, os.WriteFile(k.path+"-file", nil, 0o600))
	k.kill()
	require.Equal(t, 3, ask("list"))
	for _, other := range []string{"-link", "-file"} {
		require.Contains(t, fails(k.path+other), "is no socket")
	}
	again := prepared(t, "")
	again.Args[len(again.Args)-1], again.path = k.path, k.path
	again.serve()
	require.Equal(t, os.FileMode(0o600), must(os.Stat(k.path)).Mode().Perm())

	fds, _ := files("a", 1)
	holder, pidfd := sleeper(t)
	again.dial().put("m@1", 0, pidfd, fds)
	again.dial().put("m@2", 0, pidfd, fds)
	var out bytes.Buffer
	require.Equal(t, 0, run([]string{"check", k.path}, &out, io.Discard))
	require.Empty(t, out.String())
	require.Equal(t, 0, run([]string{"list", k.path}, &out, io.Discard))
	require.Contains(t, out.String(), `"name":"m","version":"2"`)
	require.Contains(t, out.String(), fmt.Sprintf(`"holders":[{"pid":%d,"uid":%d}]`, holder.Process.Pid, os.Getuid()))
	require.Equal(t, 4, ask("drop", "m@3"))
	require.Equal(t, 0, ask("drop", "m@1"))
	require.Equal(t, "m@2 held 1\n", again.states())
	require.Equal(t, 0, ask("drop", "m"))
	require.Empty(t, again.states())
	for _, wrong := range [][]string{nil, {"x"}, {"list"}, {"list", "a", "b"}, {"check", "-g", "1", "a"}, {"drop", "a"}, {"-x"}} {
		require.Equal(t, 2, run(wrong, io.Discard, io.Discard), wrong)
	}
}

func TestUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be several users")
	}
	for group, said := range map[string]string{"": "this keeper is user 12345's, not user 54321's", "54321": "whole: true"} {
		k := serving(t, "", slices.Repeat([]string{"-g", group}, min(len(group), 1))...)
		if group == "" {
			must(0, os.Chmod(k.path, 0o666))
		}
		other := command(t, "rank", "", k.path, "m")
		other.SysProcAttr.Credential = &syscall.Credential{Uid: othersUser, Gid: othersUser}
		other.Run()
		require.Equal(t, said, other.log())
	}
}

func TestSIGTERM(t *testing.T) {
	k := prepared(t, "")
	if os.Getuid() == 0 {
		k.SysProcAttr.Cloneflags = unix.CLONE_NEWPID // it is PID 1
	}
	k.serve()
	fds, _ := files("a", 1)
	_, pidfd := sleeper(t)
	k.dial().put("m", 0, pidfd, fds)
	must(0, k.Process.Signal(unix.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- k.Wait() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "it goes on")
	}
}
