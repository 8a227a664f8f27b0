// SPDX-License-Identifier: MIT

// Package suite runs test programs as subtests of go test and keeps their counts.
//
// A program prints TAP and, last, its counts: 'N passed, N failed, N skipped'. These are
// one failure each: a program that ends without counts; one whose counts are not those of
// its TAP lines; one that ends with a status other than 0 and counts no failure; one that
// is killed at its limit; one that cannot be built, or needs a program that is missing.
package suite

import "time"

// A Group is a test, to go test.
type Group struct {
	Name  string
	Holds string // the promise that breaks where one of its programs fails
	When  When
	Chain bool // the programs run one after the other, each after the ones before it
	Rows  []Program
}

// When says which make target runs a group without naming it.
type When int

const (
	Check When = iota // make check
	All               // make check-all, after make check
	Named             // none: it runs when -run names it
)

// Sim says which simulated drivers a program sees.
type Sim int

const (
	NoSim    Sim = iota // none, unless it has backends
	Plain               // libcuda
	RMDriver            // it, and NVIDIA's kernel driver; x86-64 alone
)

// A Program is one line of the table. The zero value of a field is what most programs need.
type Program struct {
	Name  string
	Holds string // its own part of the group's promise

	// On lists backends. The program runs once on each, with GDRCOPY_BACKEND; without
	// any it runs once.
	On []string

	// Cmd is the command. Without one it is $B/bin/GROUP_NAME.
	Cmd []string

	// Make lists make's targets that the program needs besides the doubles, and besides
	// its command, which make makes where it lies in $B; not so if it is Built.
	Make  []string
	Built bool

	// Needs lists programs that must be in PATH; needs.txt knows their packages. What make check needs
	// comes by setup.sh, or each Debian has it.
	Needs []string

	Env   []string // NAME=VALUE, after all else
	Sim   Sim
	Tree  string        // the folder in build/ with the library; "" is build/ itself
	Limit time.Duration // it is killed then; 0 is defaultLimit, negative none
	Cases Cases         // how one case is picked
	Count Count         // how its output is counted
}

// Cases says how a program lists and takes the names of cases.
type Cases int

const (
	Whole  Cases = iota // it does not
	Guest               // -l lists; a case is an argument (tests/c/guest/common.h)
	Option              // -l lists; a case is the value of -t (gdrcopy_sanity)
)

// Count says what is counted in a program's output.
type Count int

const (
	TAP    Count = iota // TAP lines and the closing line
	GoTest              // the '---' lines of go test -v
	Status              // nothing: status 0 is one test that passed
)

const defaultLimit = 20 * time.Minute

// A row is a program on one backend.
type row struct {
	Program
	group   string
	when    When
	backend string
}

// path is GROUP/NAME[/BACKEND].
func (r *row) path() string {
	path := r.group + "/" + r.Name
	if r.backend != "" {
		path += "/" + r.backend
	}
	return path
}

// rows are those of a program that this machine can run.
func rows(g Group, p Program, arch string) (all []*row) {
	backends := p.On
	if len(backends) == 0 {
		backends = []string{""}
	}
	for _, b := range backends {
		if (b == "rm" || p.Sim == RMDriver) && arch != "amd64" {
			continue
		}
		all = append(all, &row{Program: p, group: g.Name, when: g.When, backend: b})
	}
	return all
}
