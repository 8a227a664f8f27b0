package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gdrapi/cmd/gdrcopy_doctor/internal/diagnose"
	"gdrapi/cmd/gdrcopy_doctor/internal/probe"
	"gdrapi/cmd/internal/version"

	"github.com/stretchr/testify/require"
)

// The test's program is the doctor where this variable is set; so are the doctor's children.
const asDoctor = "GDRCOPY_TEST_DOCTOR"

func TestMain(m *testing.M) {
	if os.Getenv(asDoctor) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// doctor runs the program. What a child answers is behind what is printed.
func doctor(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	answer, err := os.Create(filepath.Join(t.TempDir(), "answer"))
	require.NoError(t, err)
	defer answer.Close()
	var o, e bytes.Buffer
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asDoctor+"=1")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &o, &e, []*os.File{answer}
	if err := cmd.Run(); cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	text, err := os.ReadFile(answer.Name())
	require.NoError(t, err)
	return cmd.ProcessState.ExitCode(), o.String() + string(text), e.String()
}

func TestProgram(t *testing.T) {
	status, out, errs := doctor(t, "--version")
	require.Equal(t, []any{0, version.Line("gdrcopy_doctor"), ""}, []any{status, out, errs})
	status, out, errs = doctor(t, "-x")
	require.Equal(t, []any{2, ""}, []any{status, out})
	require.Regexp(t, `^gdrcopy_doctor: .*-x; -h lists the options\n$`, errs)
	status, out, errs = doctor(t, probe.Flag, "cuda")
	require.Equal(t, []any{2, "", "gdrcopy_doctor: a probe takes a name and an argument\n"}, []any{status, out, errs})
	status, out, errs = doctor(t, probe.Flag, "backend", "pigeon")
	require.Equal(t, []any{0, ""}, []any{status, errs})
	require.Contains(t, out, `"errno":"EINVAL"`)
	require.Equal(t, time.Minute, childLimit, "gdrcopy_doctor(1) says so")
}

// On this machine, whatever it is: the probes have answered, and the status is the verdict's.
func TestThisMachine(t *testing.T) {
	status, out, errs := doctor(t, "--json")
	require.Empty(t, errs)
	var r diagnose.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r), out)
	require.Equal(t, map[diagnose.Verdict]int{diagnose.Works: 0, diagnose.Broken: 1, diagnose.NoGPU: 77}[r.Verdict], status)
	require.True(t, slices.ContainsFunc(r.Findings, func(f diagnose.Finding) bool { return f.ID == "library" }), out)
	plainly, out, errs := doctor(t)
	require.Empty(t, errs)
	require.Equal(t, status, plainly)
	require.Contains(t, out, fmt.Sprintf("  %s: %s\n", r.Findings[0].ID, r.Findings[0].Cause))
	if os.Getenv("GDR_TEST_DOUBLES") != "" {
		require.Equal(t, diagnose.Works, r.Verdict)
		require.Equal(t, "dmabuf", r.Backend)
		require.Contains(t, r.Summary, "gdr_open takes dmabuf. It was tried on 2 GPUs")
	}
}

var report = diagnose.Report{
	Verdict: diagnose.Broken, Summary: "It does not work.", Backend: "rm",
	Backends: []diagnose.Backend{{Name: "rm", Taken: true, WriteNS: 159, ReadNS: 1018}, {Name: "dmabuf", Works: true, WriteNS: 0.5}},
	Findings: []diagnose.Finding{
		{ID: "gpu", Status: diagnose.OK, Cause: "All is well."},
		{ID: "cuda", Status: diagnose.Warn, Cause: "It is slow.", Advice: "Wait."},
		{ID: "library", Status: diagnose.Fail, Cause: "It is not there.", Advice: "Install it."},
	},
}

func runWith(r diagnose.Report, err error, args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(args, &o, &e, func() (diagnose.Report, error) { return r, err })
	return status, o.String(), e.String()
}

func TestPlain(t *testing.T) {
	status, out, errs := runWith(report, nil)
	require.Equal(t, 1, status)
	require.Empty(t, errs)
	require.Equal(t, `OK    gpu: All is well.
WARN  cuda: It is slow.
      do: Wait.
FAIL  library: It is not there.
      do: Install it.

It does not work.
`, out)
}

func TestStatuses(t *testing.T) {
	for verdict, want := range map[diagnose.Verdict]int{diagnose.Works: 0, diagnose.Broken: 1, diagnose.NoGPU: 77} {
		status, _, _ := runWith(diagnose.Report{Verdict: verdict}, nil)
		require.Equal(t, want, status)
	}
	status, out, errs := runWith(report, errors.New("no /proc"))
	require.Equal(t, 1, status)
	require.Empty(t, out)
	require.Equal(t, "gdrcopy_doctor: no /proc\n", errs)
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestOutputThatCannotBeWritten(t *testing.T) {
	for _, args := range [][]string{nil, {"-j"}, {"-h"}, {"-V"}} {
		for _, v := range []diagnose.Verdict{diagnose.Works, diagnose.NoGPU} {
			var e bytes.Buffer
			require.Equal(t, 1, run(args, full{}, &e, func() (diagnose.Report, error) { return diagnose.Report{Verdict: v}, nil }))
			require.Equal(t, "gdrcopy_doctor: cannot write the output: no space\n", e.String())
		}
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"-x"}, {"--jsons"}, {"x"}, {"-j", "x"}, {"-j=maybe"}} {
		status, out, errs := runWith(report, nil, args...)
		require.Equal(t, 2, status, args)
		require.Empty(t, out)
		require.Regexp(t, `^gdrcopy_doctor: .*; -h lists the options\n$`, errs)
	}
	for _, arg := range []string{"-h", "--help"} {
		status, out, _ := runWith(report, nil, arg)
		require.Equal(t, 0, status)
		require.Equal(t, help, out)
	}
	for _, arg := range []string{"-V", "--version"} {
		status, out, errs := runWith(report, nil, arg)
		require.Equal(t, 0, status)
		require.Empty(t, errs)
		require.Regexp(t, `^gdrcopy_doctor \S+ \(commit \S+, go[0-9.]+`, out)
	}
}

// Each value is under its name.
func TestJSONValues(t *testing.T) {
	saved := [2]string{version.Release, version.Commit}
	defer func() { version.Release, version.Commit = saved[0], saved[1] }()
	version.Release, version.Commit = "2.6.1", "0123456789ab"
	_, out, _ := runWith(report, nil, "-j")
	require.Equal(t, `{
  "doctor": {
    "version": "2.6.1",
    "commit": "0123456789ab",
    "go": "`+runtime.Version()+`"
  },
  "verdict": "broken",
  "summary": "It does not work.",
  "backend": "rm",
  "backends": [
    {
      "name": "rm",
      "taken": true,
      "works": false,
      "write_ns": 159,
      "read_ns": 1018
    },
    {
      "name": "dmabuf",
      "taken": false,
      "works": true,
      "write_ns": 0.5,
      "read_ns": 0
    }
  ],
  "findings": [
    {
      "id": "gpu",
      "status": "ok",
      "cause": "All is well.",
      "advice": ""
    },
    {
      "id": "cuda",
      "status": "warn",
      "cause": "It is slow.",
      "advice": "Wait."
    },
    {
      "id": "library",
      "status": "fail",
      "cause": "It is not there.",
      "advice": "Install it."
    }
  ]
}
`, out)
	for verdict, want := range map[diagnose.Verdict]string{diagnose.Works: "works", diagnose.NoGPU: "no-gpu"} {
		_, out, _ := runWith(diagnose.Report{Verdict: verdict}, nil, "--json")
		require.Contains(t, out, fmt.Sprintf("\n  \"verdict\": %q,\n", want))
	}
}

// The names of the JSON are those of the manual page, and no others.
func TestJSON(t *testing.T) {
	status, out, _ := runWith(report, nil, "--json")
	require.Equal(t, 1, status)
	var tree any
	require.NoError(t, json.Unmarshal([]byte(out), &tree))
	names := map[string]bool{}
	collect(tree, names)

	page, err := os.ReadFile("../../docs/man/man1/gdrcopy_doctor.1")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n.Sh JSON\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n.Sh ")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\.It Li ([a-z_]+)`).FindAllStringSubmatch(section, -1) {
		documented[m[1]] = true
	}
	require.Equal(t, documented, names)
}

func collect(v any, names map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			names[name] = true
			collect(inner, names)
		}
	case []any:
		for _, inner := range v {
			collect(inner, names)
		}
	}
}
