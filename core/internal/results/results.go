// Package results maps what a driver's functions answer to names and errno values.
package results

import "golang.org/x/sys/unix"

// Entry is what is known of one result.
type Entry struct {
	Name   string // as the driver's documentation has it
	Errno  unix.Errno
	Advice string // to the user, or ""
}

// Table has the results of one driver. R is its type of results. R's Error calls Text, and its
// Unwrap calls Errno.
type Table[R comparable] map[R]Entry

// Text is the message of an error r: its name, its number and the advice. A result that
// the table does not have is kind and its number.
func (t Table[R]) Text(r R, kind, number string) string {
	e, ok := t[r]
	switch {
	case !ok:
		return kind + " " + number
	case e.Advice == "":
		return e.Name + " (" + number + ")"
	}
	return e.Name + " (" + number + "): " + e.Advice
}

// Errno is the errno value that a caller of this library gets for r. It is EIO for a
// result that the table does not have.
func (t Table[R]) Errno(r R) unix.Errno {
	if e, ok := t[r]; ok {
		return e.Errno
	}
	return unix.EIO
}
