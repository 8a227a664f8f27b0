// Command gdrcopy_doctor answers why libgdrapi does not work on a machine: which backend
// gdr_open takes, why not each other one, and what to do. See gdrcopy_doctor(1).
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"gdrapi/cmd/gdrcopy_doctor/internal/diagnose"
	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/cmd/gdrcopy_doctor/internal/probe"
	"gdrapi/cmd/internal/version"
	"gdrapi/core"
)

// Exit statuses.
const (
	exitWorks  = 0
	exitBroken = 1
	exitUsage  = 2
	exitNoGPU  = 77
)

const help = `Usage: gdrcopy_doctor [-j]
Says whether libgdrapi works on this machine, by which backend, and what to do where it
does not.

  -j, --json     print the diagnosis as JSON
  -V, --version  print the release, the commit, the version of Go and the backends
  -h, --help     print this

Exit status:
  0   libgdrapi works
  1   something is wrong, and there is an advice
  2   an argument is wrong
  77  there is no NVIDIA GPU
`

// childLimit is how long one driver or library may take to answer. The first use of a
// GPU takes seconds where nothing keeps it awake.
const childLimit = 60 * time.Second

func main() {
	if len(os.Args) > 1 && os.Args[1] == probe.Flag {
		os.Exit(probe.Child(os.Args[2:]))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, examine))
}

var statuses = map[diagnose.Verdict]int{diagnose.Works: exitWorks, diagnose.Broken: exitBroken, diagnose.NoGPU: exitNoGPU}

// run is the program, with what it says and finds out as parameters.
func run(args []string, out, errs io.Writer, examine func() (diagnose.Report, error)) int {
	var inJSON, ofBuild, usage bool
	set := flag.NewFlagSet("gdrcopy_doctor", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for name, asked := range map[string]*bool{"j": &inJSON, "json": &inJSON, "V": &ofBuild, "version": &ofBuild, "h": &usage, "help": &usage} {
		set.BoolVar(asked, name, false, "")
	}
	err := set.Parse(args)
	if err == nil && set.NArg() > 0 {
		err = fmt.Errorf("it takes no argument like %q", set.Arg(0))
	}
	text, status := "", exitWorks
	switch {
	case err != nil:
		fmt.Fprintf(errs, "gdrcopy_doctor: %v; -h lists the options\n", err)
		return exitUsage
	case usage:
		text = help
	case ofBuild:
		text = version.Line("gdrcopy_doctor", core.Backends(core.Options{})...)
	default:
		report, err := examine()
		if err != nil {
			fmt.Fprintf(errs, "gdrcopy_doctor: %v\n", err)
			return exitBroken
		}
		text, status = plain(report), statuses[report.Verdict]
		if inJSON {
			text = asJSON(report)
		}
	}
	if _, err := io.WriteString(out, text); err != nil {
		fmt.Fprintf(errs, "gdrcopy_doctor: cannot write the output: %v\n", err)
		return exitBroken
	}
	return status
}

// examine looks at this machine.
func examine() (diagnose.Report, error) {
	self, err := os.Executable()
	if err != nil {
		return diagnose.Report{}, errors.Join(errors.New("cannot find this program's file, which the probes run"), err)
	}
	// This program has no more address space than the library: where that is little, nothing is read.
	f := facts.Facts{Limits: facts.ProcessLimits()}
	if !diagnose.TooLittleSpace(f) {
		f = facts.Root("/").Gather(os.LookupEnv)
		probe.Runner{Program: self, Limit: childLimit}.All(&f)
	}
	return diagnose.Examine(f), nil
}

// plain is the report for people.
func plain(r diagnose.Report) string {
	words := map[diagnose.Status]string{diagnose.OK: "OK  ", diagnose.Warn: "WARN", diagnose.Fail: "FAIL"}
	text := ""
	for _, f := range r.Findings {
		text += fmt.Sprintf("%s  %s: %s\n", words[f.Status], f.ID, f.Cause)
		if f.Advice != "" {
			text += fmt.Sprintf("      do: %s\n", f.Advice)
		}
	}
	return text + "\n" + r.Summary + "\n"
}

// asJSON is the report for programs. Its names are those of gdrcopy_doctor(1).
func asJSON(r diagnose.Report) string {
	b, err := json.MarshalIndent(struct {
		Doctor map[string]string `json:"doctor"`
		diagnose.Report
	}{map[string]string{"version": version.Release, "commit": version.Commit, "go": runtime.Version()}, r}, "", "  ")
	if err != nil {
		panic(err) // a Report has nothing that JSON lacks
	}
	return string(b) + "\n"
}
