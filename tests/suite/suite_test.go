// SPDX-License-Identifier: MIT

package suite

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// suiteOf is a suite of these programs, as one group g, that makes nothing.
func suiteOf(t *testing.T, programs ...Program) (*Suite, *bytes.Buffer) {
	t.Setenv("MAKE", "true")
	t.Setenv("B", "build")
	top := t.TempDir()
	s := newSuite([]Group{{Name: "g", Rows: programs}}, top, filepath.Join(top, "build"), 2)
	require.NoError(t, os.MkdirAll(s.results, 0o777))
	said := new(bytes.Buffer)
	s.say = said
	return s, said
}

func script(text string) Program { return Program{Name: "p", Cmd: []string{"sh", "-c", text}} }

// Nothing that broke looks green.
func TestOne(t *testing.T) {
	tests := []struct {
		name    string
		program Program
		want    counts
		said    string
	}{
		{"a program that passes", script("echo '3 passed, 0 failed, 1 skipped'"), counts{3, 0, 1}, ""},
		{"one that prints TAP", script("echo 'ok 1 - a'; echo 'ok 2 - b # SKIP no GPU'; echo '1 passed, 0 failed, 1 skipped'"),
			counts{1, 0, 1}, "# SKIP no GPU"},
		{"one that counts failures", script("echo 'not ok 1 - x'; echo '0 passed, 1 failed, 0 skipped'; exit 1"),
			counts{0, 1, 0}, "not ok 1 - x"},
		{"failures count, whatever the status is", script("echo '2 passed, 1 failed'"), counts{2, 1, 0}, ""},
		{"a status counts, whatever the counts are", script("echo '3 passed, 0 failed'; exit 7"), counts{3, 1, 0}, "status 7"},
		{"one that prints no counts", script("echo fine"), counts{0, 1, 0}, "without counts"},
		{"one that stops after some tests", script("echo 'ok 1 - a'"), counts{1, 1, 0}, "without counts"},
		{"one that ran no test", script("echo '0 passed, 0 failed, 0 skipped'"), counts{0, 1, 0}, "ran no test"},
		{"one that lies: it printed fewer", script("echo 'ok 1 - a'; echo '2 passed, 0 failed, 0 skipped'"),
			counts{1, 1, 0}, "it says 2 passed"},
		{"one that lies: it printed a failure", script("echo 'ok 1 - a'; echo 'not ok 2 - b'; echo '2 passed, 0 failed, 0 skipped'"),
			counts{1, 1, 0}, "not ok 2 - b"},
		{"one that lies: it hides a skip", script("echo 'ok 1 - a # SKIP'; echo '1 passed, 0 failed, 0 skipped'"),
			counts{0, 1, 1}, "it says 1 passed"},
		{"one that crashes", script("kill -SEGV $$"), counts{0, 1, 0}, "signal 11"},
		{"one that crashes after its counts", script("echo '3 passed, 0 failed'; kill -ABRT $$"), counts{3, 1, 0}, "signal 6"},
		{"one whose child crashes", script("(kill -SEGV $(sh -c 'echo $PPID')); echo \"$?\"; exit 139"), counts{0, 1, 0}, "signal 11"},
		{"one that is missing", Program{Name: "p", Cmd: []string{"no-such-program"}}, counts{0, 1, 0},
			"no-such-program is missing. Debian: apt-get install the package that has it"},
		{"one that cannot be run", Program{Name: "p", Cmd: []string{"/etc/passwd"}}, counts{0, 1, 0}, "permission denied"},
		{"one that needs a program", Program{Name: "p", Cmd: []string{"true"}, Needs: []string{"sh", "no-such-program"}},
			counts{0, 1, 0}, "no-such-program is missing."},
		{"one whose status is all", Program{Name: "p", Cmd: []string{"true"}, Count: Status}, counts{1, 0, 0}, ""},
		{"one whose status is bad", Program{Name: "p", Cmd: []string{"false"}, Count: Status}, counts{0, 1, 0}, "status 1"},
		{"go test that passes", goOutput("--- PASS: A\n    --- PASS: A/b\n--- SKIP: B\nPASS", 0), counts{2, 0, 1}, "--- SKIP: B"},
		{"go test that fails", goOutput("--- FAIL: A\nFAIL", 1), counts{0, 1, 0}, "--- FAIL: A"},
		{"go test that does not build", goOutput("--- PASS: A\nFAIL x [build failed]", 1), counts{1, 1, 0}, "does not build"},
		{"a panic in go test", goOutput("--- PASS: A\npanic: x", 2), counts{1, 1, 0}, "panicked"},
		{"go test without a test", goOutput("PASS", 0), counts{0, 1, 0}, "ran no test"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := suiteOf(t, tt.program)
			got, said := s.one(s.rows[0], nil)
			require.Equal(t, tt.want, got.counts, said)
			require.Contains(t, said, tt.said)
		})
	}
}

func goOutput(text string, status int) Program {
	return Program{Name: "p", Cmd: []string{"sh", "-c", "echo \"$0\"; exit $1", text, string(rune('0' + status))}, Count: GoTest}
}

// A program that hangs is killed with what it started.
func TestLimit(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	p := script("timeout 600 sleep 599 & echo $! >" + pid + "; echo '1 passed, 0 failed, 0 skipped'; wait")
	p.Limit = time.Second
	s, _ := suiteOf(t, p)
	got, said := s.one(s.rows[0], nil)
	require.Equal(t, counts{1, 1, 0}, got.counts)
	require.Contains(t, said, "longer than 1s")
	child, err := os.ReadFile(pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, time.Minute, 10*time.Millisecond)

	for set, want := range map[string]time.Duration{"": time.Second, "0": 0, "7": 7 * time.Second} {
		of, err := limits(set)
		require.NoError(t, err)
		require.Equal(t, want, of(s.rows[0]), "GDR_LIMIT=%s", set)
	}
	of, err := limits("")
	require.NoError(t, err)
	require.Equal(t, time.Duration(0), of(&row{Program: Program{Limit: -1}}))
	_, err = limits("1m")
	require.ErrorContains(t, err, "GDR_LIMIT")
}

// What does not build is a failure of the programs that need it, and of no other.
func TestMake(t *testing.T) {
	good, bad := script("echo '1 passed, 0 failed, 0 skipped'"), script("echo '1 passed, 0 failed, 0 skipped'")
	good.Make, bad.Make = []string{"good"}, []string{"good", "bad"}
	bad.Name = "q"
	s, said := suiteOf(t, good, bad)
	makefile := filepath.Join(s.top, "Makefile")
	require.NoError(t, os.WriteFile(makefile, []byte("good: ; @echo $@ >>"+s.top+"/made\nbad: ; @echo wrong source; false\n.PHONY: good bad\n"), 0o666))
	t.Setenv("MAKE", "make -f "+makefile)
	s.pick(".", "", Check)
	s.selected = map[string]*row{"g/p": s.rows[0], "g/q": s.rows[1]}
	require.NoError(t, s.begin())
	require.Contains(t, said.String(), "does not build")
	made, err := os.ReadFile(filepath.Join(s.top, "made"))
	require.NoError(t, err)
	require.Equal(t, "good\n", string(made), "one call makes what both need")

	got, text := s.one(s.rows[0], nil)
	require.Equal(t, counts{1, 0, 0}, got.counts, text)
	got, text = s.one(s.rows[1], nil)
	require.Equal(t, counts{0, 1, 0}, got.counts)
	require.Contains(t, text, "wrong source")
	log, err := os.ReadFile(filepath.Join(s.results, "make.log"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(log), "wrong source"), "it has what each call said")

	for flags, want := range map[string]string{
		"":                                      "",
		"ks -j2 --jobserver-auth=3,4":           "",
		"s -j2 -- CC=clang CHECK=abi\\ ext B=b": "-- CC=clang B=b",
		" -- CHECK=abi\\ ext":                   "",
		" -- CHECK=abi\\ ext GO=env\\ A=1\\ go": "-- GO=env\\ A=1\\ go",
	} {
		require.Equal(t, want, makeflags(flags))
	}
}

// The environment is that of the backend.
func TestEnvironment(t *testing.T) {
	p := script("exit 1")
	p.On, p.Tree, p.Env = []string{"dmabuf"}, "asan", []string{"GDR_TEST_DOUBLES=2", "X=$B/$BACKEND"}
	s, _ := suiteOf(t, p, script(""))
	env := strings.Join(s.environment(s.rows[0]), "\n") + "\n"
	for _, want := range []string{
		"LD_LIBRARY_PATH=" + s.build + "/doubles:" + s.build + "/asan\n", "RM_SIM=" + s.build + "/doubles/rm_sim\n",
		"GDRCOPY_BACKEND=dmabuf\n", "GDR_TEST_DOUBLES=1\nGDRCOPY_BACKEND=dmabuf\nGDR_TEST_DOUBLES=2\n",
		"X=" + s.build + "/dmabuf\n",
	} {
		require.Contains(t, env, want)
	}
	require.NotContains(t, strings.Join(s.environment(s.rows[1]), "\n"), "RM_SIM=")
	require.Contains(t, s.targets(s.rows[0]), "doubles")
	require.NotContains(t, s.targets(s.rows[1]), "doubles")
}

func TestRows(t *testing.T) {
	table := []Group{{Name: "g", Rows: []Program{{Name: "a", On: []string{"dmabuf", "rm"}}, {Name: "b", Sim: RMDriver}, {Name: "c"}}}}
	paths := func(arch string) (all []string) {
		for _, r := range rows(table, arch) {
			all = append(all, r.path)
		}
		return all
	}
	require.Equal(t, []string{"g/a/dmabuf", "g/a/rm", "g/b", "g/c"}, paths("amd64"))
	require.Equal(t, []string{"g/a/dmabuf", "g/c"}, paths("arm64"))
	s := newSuite(table, "/top", "/top/build", 1)
	t.Setenv("B", "build")
	if len(s.rows) == 4 {
		require.Equal(t, []string{"/top/build/doubles/rm_sim", "/top/build/bin/g_a"}, s.command(s.rows[1]))
		require.Equal(t, []string{"build/bin/g_a", "doubles"}, s.targets(s.rows[1]))
	}
}

func TestPick(t *testing.T) {
	table := []Group{
		{Name: "ext", Rows: []Program{{Name: "threads", On: []string{"dmabuf", "rm"}, Cases: Guest}, {Name: "words"}}},
		{Name: "guest", Rows: []Program{{Name: "threads", On: []string{"dmabuf", "rm"}, Cases: Guest}}},
		{Name: "docs", When: All, Rows: []Program{{Name: "paths"}}},
		{Name: "stress", When: Named, Rows: []Program{{Name: "fork", On: []string{"dmabuf"}}}},
	}
	tests := []struct {
		run, skip string
		level     When
		want      string
	}{
		{"", "", Check, "ext/threads/dmabuf ext/threads/rm ext/words guest/threads/dmabuf guest/threads/rm"},
		{"", "", All, "ext/threads/dmabuf ext/threads/rm ext/words guest/threads/dmabuf guest/threads/rm docs/paths"},
		{"ext/threads/dmabuf", "", Check, "ext/threads/dmabuf"},
		{"ext/threads/dmabuf/one case", "", Check, "ext/threads/dmabuf"},
		{"ext//dmabuf", "", Check, "ext/threads/dmabuf"},
		{"/threads/r", "", Check, "ext/threads/rm guest/threads/rm"},
		{"ext/(threads|words)", "", Check, "ext/threads/dmabuf ext/threads/rm ext/words"},
		{"ext/words|guest//rm", "", Check, "ext/words guest/threads/rm"},
		{"^Test_(docs|stress)$", "", Check, "docs/paths stress/fork/dmabuf"},
		{"//dmabuf", "", Check, "ext/threads/dmabuf guest/threads/dmabuf"},
		{"stress", "", Check, "stress/fork/dmabuf"},
		{"doc|stres|.", "", Check, "ext/threads/dmabuf ext/threads/rm ext/words guest/threads/dmabuf guest/threads/rm"},
		{"ext", "ext/threads", Check, "ext/words"},
		{"ext", "//dmabuf", Check, "ext/threads/rm ext/words"},
		{"ext", "//dmabuf/one", Check, "ext/threads/dmabuf ext/threads/rm ext/words"},
		{"nothing", "", Check, ""},
		{"[", "", Check, ""},
	}
	for _, tt := range tests {
		s := newSuite(table, "/top", "/top/build", 1)
		s.pick(tt.run, tt.skip, tt.level)
		var got []string
		for _, r := range s.rows {
			if s.selected[r.path] != nil {
				got = append(got, r.path)
			}
		}
		require.Equal(t, tt.want, strings.Join(got, " "), "-run %q -skip %q", tt.run, tt.skip)
		require.False(t, s.misses(), "-run %q", tt.run)
	}
	for _, run := range []string{"ext/nosuchtest", "^Test_ext$/^word$", "docs/paths/rm/case", "ext/words/rm"} {
		s := newSuite(table, "/top", "/top/build", 1)
		s.pick(run, "", Check)
		require.Empty(t, s.selected, run)
		require.True(t, s.misses(), run)
	}
}

// A case is picked by a pattern of its name, in which a blank may be a line below.
func TestCases(t *testing.T) {
	p := Program{Name: "p", Cmd: []string{"sh", "-c", "printf 'one case\\nanother\\nlast\\n'"}}
	tests := []struct {
		run    string
		cases  Cases
		want   []string
		picked bool
	}{
		{"g", Guest, nil, true},
		{"g/p", Guest, nil, true},
		{"g/p/one case", Guest, []string{"one case"}, true},
		{"g/p/one_case", Guest, []string{"one case"}, true},
		{"g/p/an|g/p/last", Guest, []string{"another", "last"}, true},
		{"g/p/an|g/p", Guest, nil, true},
		{"g/p/^a", Option, []string{"-t", "another"}, true},
		{"g/p/none", Guest, nil, false},
	}
	for _, tt := range tests {
		p.Cases = tt.cases
		s, _ := suiteOf(t, p)
		s.run = tt.run
		args, picked, err := s.cases(s.rows[0])
		require.NoError(t, err)
		require.Equal(t, tt.want, args, tt.run)
		require.Equal(t, tt.picked, picked, tt.run)
	}
	p.On, p.Cases = []string{"dmabuf"}, Whole
	s, _ := suiteOf(t, p)
	s.run = "g/p/dmabuf/one"
	_, _, err := s.cases(s.rows[0])
	require.ErrorContains(t, err, "no case of it can be picked")

	saved := listLimit
	t.Cleanup(func() { listLimit = saved })
	listLimit = time.Millisecond
	for program, want := range map[*Program]string{
		{Name: "p", Cmd: []string{"sh", "-c", "sleep 1000"}}:                    "longer than 1ms",
		{Name: "p", Cmd: []string{"false"}, Needs: []string{"no-such-program"}}: "no-such-program is missing",
	} {
		program.Cases = Guest
		s, _ := suiteOf(t, *program)
		s.run = "g/p/one"
		_, _, err := s.cases(s.rows[0])
		require.ErrorContains(t, err, want)
	}
}

// The sum fails with a failure, with nothing, and with a row that did not run.
func TestEnd(t *testing.T) {
	ran := map[string]result{"g/p": {counts: counts{2, 0, 1}}, "g/q": {counts: counts{1, 1, 0}}}
	tests := []struct {
		picked []string
		last   string
		ok     bool
	}{
		{[]string{"g/p"}, "2 passed, 0 failed, 1 skipped", true},
		{[]string{"g/p", "g/q"}, "3 passed, 1 failed, 1 skipped", false},
		{[]string{"g/p", "g/r"}, "2 passed, 1 failed, 1 skipped", false},
		{nil, "0 passed, 0 failed, 0 skipped", false},
	}
	for _, tt := range tests {
		var programs []Program
		for _, name := range []string{"p", "q", "r"} {
			programs = append(programs, Program{Name: name})
		}
		s, said := suiteOf(t, programs...)
		s.done = ran
		for _, r := range s.rows {
			for _, path := range tt.picked {
				if r.path == path {
					s.selected[path] = r
				}
			}
		}
		require.Equal(t, tt.ok, s.end(), tt.picked)
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		require.Equal(t, tt.last, lines[len(lines)-1])
		summary, err := os.ReadFile(filepath.Join(s.results, "summary"))
		require.NoError(t, err)
		require.Equal(t, said.String(), string(summary))
	}
}

// No more than n at a time; one that runs alone has no other beside it; the table's order.
func TestSlots(t *testing.T) {
	s := newSlots(2)
	first := s.take(&row{order: 9})
	second := s.take(&row{order: 8})
	var now atomic.Int32
	got := make(chan int, 4)
	wait := func(r *row) {
		go func() {
			release := s.take(r)
			if n := now.Add(1); n > 2 || r.Alone && n > 1 {
				got <- -1
			}
			got <- r.order
			now.Add(-1)
			release()
		}()
		require.Eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, w := range s.waiting {
				if w.order == r.order {
					return true
				}
			}
			return false
		}, time.Minute, time.Millisecond)
	}
	wait(&row{order: 30, Program: Program{Alone: true}})
	wait(&row{order: 20})
	wait(&row{order: 10})
	first()
	require.Equal(t, 10, <-got)
	require.Equal(t, 20, <-got)
	second()
	require.Equal(t, 30, <-got)
}

// Every program that a test may need has a package.
func TestNeeds(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.Equal(t, "valgrind is missing. Debian: apt-get install valgrind\n", lacks([]string{"valgrind"}))
	for said, want := range map[string]string{
		"sh: 1: valgrind: not found":                                           "valgrind",
		"bash: line 1: valgrind: command not found":                            "valgrind",
		"env: 'valgrind': No such file or directory":                           "valgrind",
		"timeout: failed to run command 'valgrind': No such file or directory": "valgrind",
		"cc: error: x.c: No such file or directory":                            "",
	} {
		require.Equal(t, want, missing("a line\n"+said+"\nanother\n"), said)
	}
}

// make fails where a program fails, and its last line is the sum. make help has each group,
// and each group is a target.
func TestMakefile(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	run := func(env []string, name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = top
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	b := t.TempDir()
	out, err := run([]string{"GDR_LIMIT=0.001"}, "make", "-s", "check-counts", "B="+b)
	require.Error(t, err, out)
	require.True(t, strings.HasSuffix(out, "\n0 passed, 1 failed, 0 skipped") || strings.Contains(out, "\n0 passed, 1 failed, 0 skipped\nmake"), out)

	out, err = run(nil, "make", "-s", "need-no-such-program")
	require.Error(t, err)
	require.Contains(t, out, "no-such-program is missing. Debian: apt-get install the package that has it")

	listed, err := run(nil, "go", "test", "-list", "^Test_", "./tests")
	require.NoError(t, err, listed)
	help, err := run(nil, "make", "-s", "help")
	require.NoError(t, err)
	for _, line := range strings.Split(listed, "\n") {
		name, ok := strings.CutPrefix(line, "Test_")
		if !ok {
			continue
		}
		target := "check-" + strings.ReplaceAll(name, "_", "-")
		switch name {
		case "stress", "lint", "demo":
			target = name
		case "fuzz_long":
			target = "fuzz"
		}
		require.Regexp(t, `(?m)(make|and UCX,) `+target+`( |,|;|$)`, help)
		out, err := run(nil, "make", "-n", target)
		require.NoError(t, err, out)
	}
	require.NotContains(t, help, "\nOthers\n", "make help says of each how long it takes")
}
