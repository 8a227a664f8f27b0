// Package log writes the library's log lines to standard error. It writes none unless
// the host process sets GDRCOPY_ENABLE_LOGGING.
//
// It does not use the standard library's log package, for two reasons. A line must
// leave in one write(2), whatever the host did to its standard streams. And the
// prefixes are part of the ABI's documentation.
package log

import (
	"fmt"
	"strings"
	"sync/atomic"

	"gdrapi/core/internal/sys"
)

// Level is the severity of a line. The values are those of GDRCOPY_LOG_LEVEL.
type Level int32

const (
	Debug Level = 1
	Info  Level = 2
	Warn  Level = 3
	Error Level = 4

	// Off is above every level.
	Off Level = 5
)

var prefixes = [...]string{Debug: "DBG:  ", Info: "INFO: ", Warn: "WARN: ", Error: "ERR:  "}

// threshold is the lowest level whose lines are written.
var threshold atomic.Int32

func init() { threshold.Store(int32(Off)) }

// SetThreshold sets the lowest level whose lines are written. It may be called at any
// time, from any goroutine.
func SetThreshold(l Level) { threshold.Store(int32(l)) }

// Debugf logs a detail for developers of this library.
func Debugf(format string, args ...any) { logf(Debug, format, args) }

// Infof logs a choice that the library has made.
func Infof(format string, args ...any) { logf(Info, format, args) }

// Warnf logs that something works less well than it could.
func Warnf(format string, args ...any) { logf(Warn, format, args) }

// Errorf logs why a call fails, and what to do about it.
func Errorf(format string, args ...any) { logf(Error, format, args) }

func logf(l Level, format string, args []any) {
	if int32(l) < threshold.Load() {
		return
	}
	line := strings.TrimRight(fmt.Sprintf(format, args...), "\n")
	write([]byte(prefixes[l] + line + "\n"))
}

func write(b []byte) {
	for len(b) > 0 {
		n, err := sys.Write(2, b)
		if err != nil || n == 0 {
			return // a host may have closed standard error
		}
		b = b[n:]
	}
}
