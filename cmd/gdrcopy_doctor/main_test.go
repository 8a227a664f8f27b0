package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"gdrapi/cmd/gdrcopy_doctor/internal/diagnose"

	"github.com/stretchr/testify/require"
)

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
