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

// What the program prints and how it ends.
func TestRun(t *testing.T) {
	const usage = `gdrcopy_doctor: .*; -h lists the options\n`
	plain := regexp.QuoteMeta(`OK    gpu: All is well.
WARN  cuda: It is slow.
      do: Wait.
FAIL  library: It is not there.
      do: Install it.

It does not work.
`)
	for _, c := range []struct {
		args      string
		verdict   diagnose.Verdict
		err       error
		status    int
		out, errs string // expressions
	}{
		{"", diagnose.Broken, nil, 1, plain, ""},
		{"", diagnose.Works, nil, 0, plain, ""},
		{"", diagnose.NoGPU, nil, 77, plain, ""},
		{"", diagnose.Broken, errors.New("no /proc"), 1, "", "gdrcopy_doctor: no /proc\n"},
		{"-x", "", nil, 2, "", usage}, {"--jsons", "", nil, 2, "", usage}, {"x", "", nil, 2, "", usage},
		{"-j x", "", nil, 2, "", usage}, {"-j=maybe", "", nil, 2, "", usage},
		{"-h", "", nil, 0, regexp.QuoteMeta(help), ""}, {"--help", "", nil, 0, regexp.QuoteMeta(help), ""},
		{"-V", "", nil, 0, `gdrcopy_doctor \S+ \(commit \S+, go[0-9.]+.*\n`, ""}, {"--version", "", nil, 0, `gdrcopy_doctor \S+ \(commit \S+, go[0-9.]+.*\n`, ""},
	} {
		var out, errs bytes.Buffer
		r := report
		r.Verdict = c.verdict
		status := run(strings.Fields(c.args), &out, &errs, func() (diagnose.Report, error) { return r, c.err })
		require.Equal(t, c.status, status, "%+v", c)
		require.Regexp(t, "^"+c.out+"$", out.String())
		require.Regexp(t, "^"+c.errs+"$", errs.String())
	}
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

// The names of the JSON are those of the manual page, and no others.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, 1, run([]string{"--json"}, &out, &out, func() (diagnose.Report, error) { return report, nil }))
	var tree any
	require.NoError(t, json.Unmarshal(out.Bytes(), &tree))
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
