// SPDX-License-Identifier: MIT

package suite

import (
	"context"
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

// one runs a program that needs nothing made.
func one(t *testing.T, p Program) (got counts, said string) {
	s := &suite{build: t.TempDir(), results: t.TempDir(), ctx: context.Background()}
	got, _, said = s.one(rows(Group{Name: "g"}, p, "amd64")[0], nil)
	return got, said
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
	option := script(list + `[ $# != 0 ] || set -- -t 'one case' -t another -t last
		while [ "$1" = -t ]; do echo "ok $((n += 1)) - $2"; shift 2; done; echo "$n passed, 0 failed, 0 skipped"`)
	whole, red := script(passes), script(list+`printf 'not ok 1 - one case\nok 2 - another # SKIP x\nok 3 - last\n1 passed, 1 failed, 1 skipped\n'`)
	option.Name, option.On, option.Cases = "cases", []string{"dmabuf"}, Option
	whole.Name, red.Cases = "whole", Guest
	return []Group{
		{Name: "g", Rows: []Program{option, whole}},
		{Name: "fuzz", When: All, Rows: []Program{whole}},
		{Name: "fuzz_long", When: Named, Rows: []Program{whole}},
		{Name: "red", When: Named, Rows: []Program{red}},
	}
}()

// Programs and cases are picked as go test picks subtests; what make check does not run takes its group's whole name.
// No row at all fails, as a failure does. go test has no log of inputs by which it would cache the verdict.
func TestPick(t *testing.T) {
	for flags, want := range map[string]string{
		"":                                 "g/cases/dmabuf 3, g/whole 1",
		"-all":                             "fuzz/whole 1",
		"-test.run=g/cases//one.case":      "g/cases/dmabuf 1",
		"-test.run=g/whole|g/cases//^[la]": "g/cases/dmabuf 2, g/whole 1",
		"-test.run=g/cases//none":          "",
		"-test.run=fuz":                    "",
		"-test.run=g/whole|fuzz_long/w":    "fuzz_long/whole 1, g/whole 1",
		"-test.run=red":                    "red/p 1 FAIL",
	} {
		b, log := t.TempDir(), filepath.Join(t.TempDir(), "inputs")
		cmd := exec.Command(os.Args[0], append(strings.Fields(flags), "-test.v", "-test.testlogfile="+log)...)
		cmd.Dir = ".." // as go test ./tests has it
		cmd.Env = append(os.Environ(), "SUITE_TABLE=1", "MAKE=true", "B="+b)
		out, err := cmd.CombinedOutput()
		require.Equal(t, want == "" || strings.Contains(want, "FAIL"), err != nil, "%s: %s", flags, out)
		require.Equal(t, want == "", strings.Contains(string(out), "picks no program"), "%s: %s", flags, out)
		summary, err := os.ReadFile(filepath.Join(b, "results/summary"))
		require.NoError(t, err)
		var got []string
		for _, m := range regexp.MustCompile(`(?m)^(\S+) +(\d+) passed +(\d) failed +\d skipped `).FindAllStringSubmatch(string(summary), -1) {
			got = append(got, m[1]+" "+m[2]+strings.Repeat(" FAIL", int(m[3][0]-'0')))
		}
		slices.Sort(got)
		require.Equal(t, want, strings.Join(got, ", "), "%s: %s", flags, out)
		require.NoFileExists(t, log)
		for _, verdict := range []string{"FAIL: red/p/one_case", "SKIP: red/p/another", "PASS: red/p/last"} { // A case has its own.
			require.Equal(t, strings.Contains(want, "red"), strings.Contains(string(out), "--- "+verdict), "%s: %s", flags, out)
		}
	}
}

// Nothing that broke looks green.
func TestOne(t *testing.T) {
	for _, tt := range []struct {
		name    string
		program Program
		want    counts
		said    string
	}{
		{"a program that passes", script("echo 'ok 1 - a'; echo 'ok 2 - b # SKIP no GPU'; echo '1 passed, 0 failed, 1 skipped'"),
			counts{1, 0, 1}, "# SKIP no GPU"},
		{"the log of a failure", script("echo 'ERR:  before'; echo 'not ok 1 - z'; echo '# w'; seq 30; echo '0 passed, 1 failed'"),
			counts{0, 1, 0}, "ERR:  before\nnot ok 1 - z\n# w\n"},
		{"failures count, whatever the status is", script("echo '2 passed, 1 failed'"), counts{2, 1, 0}, ""},
		{"a status counts, whatever the counts are", script("echo '3 passed, 0 failed'; exit 7"), counts{3, 1, 0}, "status 7"},
		{"one that prints no counts", script("echo 'ok 1 - a'"), counts{1, 1, 0}, "without counts"},
		{"one that ran no test", script("echo '0 passed, 0 failed, 0 skipped'"), counts{0, 1, 0}, "ran no test"},
		{"one that lies", script("echo 'not ok 2 - b'; echo '2 passed, 0 failed, 0 skipped'"), counts{0, 1, 0}, "it says 2 passed"},
		{"one that crashes", script("kill -SEGV $$"), counts{0, 1, 0}, "segmentation fault"},
		{"one that is missing", Program{Name: "p", Cmd: []string{"no-such-program"}}, counts{0, 1, 0}, "executable file not found"},
		{"one that needs a program", Program{Name: "p", Needs: []string{"no-such-program"}}, counts{0, 1, 0}, "no-such-program is missing."},
		{"one whose status is all", Program{Name: "p", Cmd: []string{"true"}, Count: Status}, counts{1, 0, 0}, ""},
		{"go test that passes", goTest("--- PASS: A\n    --- PASS: A/b\n--- SKIP: B\nPASS"), counts{2, 0, 1}, "--- SKIP: B"},
		{"go test that fails", goTest("--- FAIL: A\nFAIL"), counts{0, 1, 0}, "--- FAIL: A"},
		{"go test that does not build", goTest("--- PASS: A\nFAIL x [build failed]"), counts{1, 1, 0}, "does not build"},
	} {
		got, said := one(t, tt.program)
		require.Equal(t, tt.want, got, "%s: %s", tt.name, said)
		require.Contains(t, said, tt.said, tt.name)
	}
}

func goTest(output string) Program {
	return Program{Name: "p", Cmd: []string{"echo", output}, Count: GoTest}
}

// What a program started ends with it: after a limit, and after an end of its own.
func TestLimit(t *testing.T) {
	for end, limit := range map[string]time.Duration{"wait": time.Second, "exit": 0} {
		pid := filepath.Join(t.TempDir(), "pid")
		p := script("timeout 600 sleep 599 & echo $! >" + pid + "; " + passes + "; " + end)
		p.Limit = limit
		got, said := one(t, p)
		require.Equal(t, limit > 0, got.failed == 1)
		require.Equal(t, limit > 0, strings.Contains(said, "longer than 1s"), said)
		child, err := os.ReadFile(pid)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, time.Minute, 10*time.Millisecond)
	}
}
