// SPDX-License-Identifier: MIT

package suite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The programs of these tests need what they need; TestNeeds has those of make check.
var group = Group{Name: "g", When: All}

// suiteOf is a run of one program that makes nothing.
func suiteOf(t *testing.T, p Program) (*suite, *row) {
	t.Setenv("MAKE", "true")
	t.Setenv("B", "build")
	top := t.TempDir()
	build := filepath.Join(top, "build")
	results := filepath.Join(build, "results")
	require.NoError(t, os.MkdirAll(results, 0o777))
	s := &suite{top: top, build: build, results: results, limit: -1, ctx: context.Background(),
		say: new(strings.Builder)}
	return s, rows(group, p, "amd64")[0]
}

func script(text string) Program { return Program{Name: "p", Cmd: []string{"sh", "-c", text, "sh"}} }

// TestPick starts this program anew, as go test starts that of ./tests, with a small table.
func TestMain(m *testing.M) {
	if os.Getenv("SUITE_TABLE") != "" {
		Main(m, small)
	}
	os.Exit(m.Run())
}

func Test(t *testing.T) {
	if current == nil {
		t.Skip("the table of TestPick")
	}
	Run(t)
}

const passes = "echo '1 passed, 0 failed, 0 skipped'"

var small = func() []Group {
	const list = "[ \"$1\" != -l ] || exec printf 'one case\\nanother\\nlast\\n'\n"
	const sum = "\necho \"$n passed, 0 failed, 0 skipped\""
	on := script(list + `[ $# != 0 ] || set -- 'one case' another last
		for c; do echo "ok $((n += 1)) - $c"; done` + sum)
	option := script(list + `[ $# != 0 ] || set -- -t 'one case' -t another -t last
		while [ "$1" = -t ]; do echo "ok $((n += 1)) - $2"; shift 2; done` + sum)
	whole, red := script(passes), script(list+`printf 'not ok 1 - one case\nok 2 - another # SKIP x\nok 3 - last\n1 passed, 1 failed, 1 skipped\n'`)
	on.Name, on.On, on.Cases = "cases", []string{"dmabuf"}, Guest
	option.Name, option.Cases = "option", Option
	whole.Name, red.Cases = "whole", Guest
	return []Group{
		{Name: "g", Rows: []Program{on, option, whole}},
		{Name: "fuzz", When: All, Rows: []Program{whole}},
		{Name: "fuzz_long", When: Named, Rows: []Program{whole}},
		{Name: "red", When: Named, Rows: []Program{red}},
	}
}()

// Programs and cases are picked as go test picks subtests; what make check does not run takes its group's whole name.
// No row at all fails, as a failure does. go test has no log of inputs by which it would cache the verdict.
func TestPick(t *testing.T) {
	tests := []struct{ flags, want string }{
		{"", "g/cases/dmabuf 3, g/option 3, g/whole 1"},
		{"-all", "fuzz/whole 1"},
		{"-test.run=^g$/cases", "g/cases/dmabuf 3"},
		{"-test.run=g/cases//one case", "g/cases/dmabuf 1"},
		{"-test.run=g/(cases|option)/^a", "g/option 1"},
		{"-test.run=g/option/^a|g/cases//l", "g/cases/dmabuf 1, g/option 1"},
		{"-test.run=g/cases/dmabuf/o", "g/cases/dmabuf 2"},
		{"-test.run=g/cases//none", ""},
		{"-test.run=nothing", ""},
		{"-test.run=fuzz", "fuzz/whole 1"},
		{"-test.run=g/whole|fuzz_long/w", "fuzz_long/whole 1, g/whole 1"},
		{"-test.run=fuz", ""},
		{"-test.run=red", "red/p 1 FAIL"},
	}
	for _, tt := range tests {
		t.Run(tt.flags, func(t *testing.T) {
			b, log := t.TempDir(), filepath.Join(t.TempDir(), "inputs")
			cmd := exec.Command(os.Args[0], "-test.v", "-test.testlogfile="+log)
			if tt.flags != "" {
				cmd.Args = append(cmd.Args, tt.flags)
			}
			cmd.Dir = ".." // as go test ./tests has it
			cmd.Env = append(os.Environ(), "SUITE_TABLE=1", "MAKE=true", "B="+b)
			out, err := cmd.CombinedOutput()
			green := tt.want != "" && !strings.Contains(tt.want, "FAIL")
			require.Equal(t, green, err == nil, string(out))
			summary, err := os.ReadFile(filepath.Join(b, "results/summary"))
			require.NoError(t, err)
			var got []string
			for _, m := range regexp.MustCompile(`(?m)^(\S+) +(\d+) passed +(\d) failed +\d skipped `).FindAllStringSubmatch(string(summary), -1) {
				got = append(got, m[1]+" "+m[2]+strings.Repeat(" FAIL", int(m[3][0]-'0')))
			}
			slices.Sort(got)
			require.Equal(t, tt.want, strings.Join(got, ", "), string(out))
			require.NoFileExists(t, log)
			for _, verdict := range []string{"FAIL: red/p/one_case", "SKIP: red/p/another", "PASS: red/p/last"} { // A case has its own.
				require.Equal(t, strings.Contains(tt.want, "red"), strings.Contains(string(out), "--- "+verdict), string(out))
			}
		})
	}
}

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
		{"the log before a failure", script("echo 'ERR:  before'; echo 'ok 1 - x'; echo '# y'; echo 'WARN: why'; echo 'not ok 2 - z'; echo '# w';" +
			"seq 30; echo '1 passed, 1 failed'"), counts{1, 1, 0}, "# y\nWARN: why\nnot ok 2 - z\n# w\n   the last"},
		{"the library logs", script("echo \"not ok 1 - $GDRCOPY_ENABLE_LOGGING $GDRCOPY_LOG_LEVEL\"; echo '0 passed, 1 failed'"),
			counts{0, 1, 0}, "not ok 1 - 1 3\n"},
		{"failures count, whatever the status is", script("echo '2 passed, 1 failed'"), counts{2, 1, 0}, ""},
		{"a status counts, whatever the counts are", script("echo '3 passed, 0 failed'; exit 7"), counts{3, 1, 0}, "status 7"},
		{"one that prints no counts", script("echo fine"), counts{0, 1, 0}, "without counts"},
		{"one that stops after some tests", script("echo 'ok 1 - a'"), counts{1, 1, 0}, "without counts"},
		{"one that ran no test", script("echo '0 passed, 0 failed, 0 skipped'"), counts{0, 1, 0}, "ran no test"},
		{"one that lies: it printed fewer", script("echo 'ok 1 - a'; echo '2 passed, 0 failed, 0 skipped'"),
			counts{1, 1, 0}, "it says 2 passed"},
		{"one that lies: it printed a failure", script("echo 'ok 1 - a'; echo 'not ok 2 - b'; echo '2 passed, 0 failed, 0 skipped'"),
			counts{1, 1, 0}, "not ok 2 - b"},
		{"one that crashes", script("kill -SEGV $$"), counts{0, 1, 0}, "segmentation fault"},
		{"one that crashes after its counts", script("echo '3 passed, 0 failed'; kill -ABRT $$"), counts{3, 1, 0}, "aborted"},
		{"one that is missing", Program{Name: "p", Cmd: []string{"no-such-program"}}, counts{0, 1, 0},
			"executable file not found"},
		{"one that cannot be run", Program{Name: "p", Cmd: []string{"/etc/passwd"}}, counts{0, 1, 0}, "permission denied"},
		{"one that needs a program", Program{Name: "p", Cmd: []string{"true"}, Needs: []string{"sh", "no-such-program"}},
			counts{0, 1, 0}, "no-such-program is missing."},
		{"one whose status is all", Program{Name: "p", Cmd: []string{"true"}, Count: Status}, counts{1, 0, 0}, ""},
		{"one whose status is bad", Program{Name: "p", Cmd: []string{"false"}, Count: Status}, counts{0, 1, 0}, "exit status 1"},
		{"go test that passes", goOutput("--- PASS: A\n    --- PASS: A/b\n--- SKIP: B\nPASS", 0), counts{2, 0, 1}, "--- SKIP: B"},
		{"go test that fails", goOutput("--- FAIL: A\nFAIL", 1), counts{0, 1, 0}, "--- FAIL: A"},
		{"go test that does not build", goOutput("--- PASS: A\nFAIL x [build failed]", 1), counts{1, 1, 0}, "does not build"},
		{"a panic in go test", goOutput("--- PASS: A\npanic: x", 2), counts{1, 1, 0}, "panicked"},
		{"go test without a test", goOutput("PASS", 0), counts{0, 1, 0}, "ran no test"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, r := suiteOf(t, tt.program)
			got, _, said := s.one(r, nil)
			require.Equal(t, tt.want, got, said)
			require.Contains(t, said, tt.said)
		})
	}
}

func goOutput(text string, status int) Program {
	return Program{Name: "p", Cmd: []string{"sh", "-c", "echo \"$0\"; exit $1", text, string(rune('0' + status))}, Count: GoTest}
}

// What make check needs is there after setup.sh alone, whatever else this machine has.
func TestNeeds(t *testing.T) {
	s, r := suiteOf(t, Program{Name: "p", Cmd: []string{"true"}, Count: Status, Needs: []string{"script", "readelf"}})
	for setup, want := range map[string]string{"gcc binutils": "", "gcc": "g/p runs in make check and needs readelf, which setup.sh does not install (binutils)"} {
		s.given = given("#!/bin/sh\npackages='" + setup + "'\n")
		r.when = All
		require.NoError(t, s.ready(r))
		r.when = Check
		if err := s.ready(r); want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, want)
		}
	}
}

// What a program started ends with it: after a limit, and after an end of its own.
func TestLimit(t *testing.T) {
	for _, end := range []string{"wait", "exit"} {
		pid := filepath.Join(t.TempDir(), "pid")
		p := script("timeout 600 sleep 599 & echo $! >" + pid + "; " + passes + "; " + end)
		want, why := counts{1, 0, 0}, ""
		if end == "wait" {
			p.Limit = time.Second
			want, why = counts{1, 1, 0}, "longer than 1s"
		}
		s, r := suiteOf(t, p)
		got, _, said := s.one(r, nil)
		require.Equal(t, want, got)
		require.Contains(t, said, why)
		child, err := os.ReadFile(pid)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, time.Minute, 10*time.Millisecond)
	}
}

// go test's limit ends what runs before it ends this process, and says which flag to give.
func TestTimeout(t *testing.T) {
	s, r := suiteOf(t, script("sleep 600 & echo '1 passed, 0 failed, 0 skipped'; wait"))
	ctx, cancel := beforeTimeout(s.ctx, time.Second)
	defer cancel()
	s.ctx = ctx
	got, _, said := s.one(r, nil)
	require.Equal(t, counts{1, 1, 0}, got)
	require.Contains(t, said, "it was interrupted: go test ends after 1s: -timeout 0 lets it run on")
	ctx, cancel = beforeTimeout(context.Background(), 0)
	defer cancel()
	_, ends := ctx.Deadline()
	require.False(t, ends)
}

// A row that had not begun at an interrupt did not fail. Nor is the run green.
func TestNotRun(t *testing.T) {
	s, r := suiteOf(t, script(passes))
	t.Run("before", func(t *testing.T) { s.test(t, r) })
	ctx, cancel := context.WithCancelCause(s.ctx)
	cancel(errors.New("the user has gone"))
	s.ctx = ctx
	t.Run("after", func(t *testing.T) { s.test(t, r) })
	require.Equal(t, counts{passed: 1}, s.sum)
	require.False(t, s.end())
	require.Contains(t, s.say.(*strings.Builder).String(),
		"g/p                                not run\n1 passed, 0 failed, 0 skipped; 1 programs were not run: the user has gone\n")
}

// What does not build is a failure of the programs that need it, and of no other.
func TestMake(t *testing.T) {
	good, bad := script(passes), script(passes)
	good.Make, bad.Make = []string{"good"}, []string{"good", "bad"}
	s, r := suiteOf(t, good)
	makefile := filepath.Join(s.top, "Makefile")
	require.NoError(t, os.WriteFile(makefile, []byte("good: ; @echo $@ >>"+s.top+"/made\nbad: ; @echo wrong source; false\n.PHONY: good bad\n"), 0o666))
	t.Setenv("MAKE", "make -f "+makefile)
	s.want([]string{"good", "good", "bad"})
	got, _, said := s.one(r, nil)
	require.Equal(t, counts{1, 0, 0}, got, said)
	made, err := os.ReadFile(filepath.Join(s.top, "made"))
	require.NoError(t, err)
	require.Equal(t, "good\ngood\n", string(made), "one call makes what all want; then each row asks for its own")
	got, _, said = s.one(rows(group, bad, "amd64")[0], nil)
	require.Equal(t, counts{0, 1, 0}, got)
	require.Contains(t, said, "wrong source")
}

func TestRows(t *testing.T) {
	p := Program{Name: "a", On: []string{"dmabuf", "rm"}, Tree: "asan", Env: []string{"GDR_TEST_DOUBLES=2", "X=$B/$BACKEND"}}
	s, _ := suiteOf(t, p)
	all := rows(group, p, "amd64")
	require.Len(t, all, 2)
	require.Equal(t, "g/a/rm", all[1].path())
	require.Equal(t, []string{s.build + "/doubles/rm_sim", s.build + "/bin/g_a"}, s.command(all[1]))
	require.Equal(t, []string{"build/bin/g_a", "doubles"}, targets(all[1]))
	require.Subset(t, s.environment(all[0]), []string{"LD_LIBRARY_PATH=" + s.build + "/doubles:" + s.build + "/asan",
		"GDRCOPY_BACKEND=dmabuf", "GDR_TEST_DOUBLES=2", "X=" + s.build + "/dmabuf"})
	require.Len(t, rows(group, p, "arm64"), 1)
	require.Empty(t, rows(group, Program{Sim: RMDriver}, "arm64"))
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
	out, err := run([]string{"GDR_LIMIT=0.001"}, "make", "-s", "check-release", "B="+b)
	require.Error(t, err, out)
	// The program may have passed a check before it was ended.
	require.Regexp(t, `\n\d+ passed, 1 failed, 0 skipped(\nmake.*)?$`, out)

	out, err = run([]string{"B=" + b}, "go", "test", "./tests", "-run", "abi/none")
	require.Error(t, err, out)
	require.Contains(t, out, "-run abi/none picks no program")

	table, err := os.ReadFile(filepath.Join(top, "tests/table_test.go"))
	require.NoError(t, err)
	groups := regexp.MustCompile(`(?m)^\t\{Name: "(\w+)", .*Rows: `).FindAllStringSubmatch(string(table), -1)
	require.Greater(t, len(groups), 40)
	help, err := run(nil, "make", "-s", "help")
	require.NoError(t, err)
	for _, group := range groups {
		name := group[1]
		target := "check-" + strings.ReplaceAll(name, "_", "-")
		switch name {
		case "stress", "lint":
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
