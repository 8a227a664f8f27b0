// Package doctor has the test of docs/troubleshooting.md against the code.
package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	top  = "../.."
	page = top + "/docs/troubleshooting.md"
)

// verb is what the formats of Go and of C put a value for.
var verb = regexp.MustCompile(`%[-+# 0-9.*]*(?:l|ll|z)?[a-zA-Z]`)

// wrapped is what a message ends with where it passes on another one.
var wrapped = regexp.MustCompile(`(?:: …| \(…\)| \(errno …\)|\n…)+$`)

// shape is a message as the page has it: … for a value, without what it passes on.
func shape(format string) string {
	text := verb.ReplaceAllString(format, "…")
	text = wrapped.ReplaceAllString(text, "")
	return strings.TrimPrefix(text, "…: ")
}

// words matches two words, or one beside a value.
var words = regexp.MustCompile(`[A-Za-z]{2}.* |….* .*[A-Za-z]{2}`)

// add notes a message, unless it only passes on others.
func add(messages map[string]string, format, file string) {
	if s := shape(format); words.MatchString(s) && (file != quiet || messages[s] == "") {
		messages[s] = file
	}
}

// quiet stands for the file of a message that need not be on the page: at level 1 or 2 it
// only tells what the library does; with EINVAL it names the argument to correct.
const quiet = "at level 1 or 2, or EINVAL"

// What makes messages: calls of Go, which go to package log or are errors, which end there; calls of C, whose last
// string is the message; and strings that have a name.
var (
	callOfGo = regexp.MustCompile(`\b(?:fmt\.Errorf|errors\.New|log\.\w+)\("(?:[^"\\]|\\.)*"[^\n]*`)
	callOfC  = regexp.MustCompile(`(?s)\b(?:gdr_log|gdr_refuse|refuse)\((.*?)\);`)
	named    = regexp.MustCompile(`static const char \w+\[\] =\s*("(?:[^"\\]|\\.)*")`)
	literal  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	low      = regexp.MustCompile(`^log\.(Debug|Info)f|^gdr_log\(GDR_LOG_(DEBUG|INFO)|EINVAL`)
)

// of collects the messages of a file.
func of(t *testing.T, messages map[string]string, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	calls, which := callOfC, func(all []string) string { return all[len(all)-1] }
	if strings.HasSuffix(file, ".go") {
		calls, which = callOfGo, func(all []string) string { return all[0] }
	}
	for _, call := range append(calls.FindAllString(string(text), -1), named.FindAllString(string(text), -1)...) {
		all := literal.FindAllString(call, -1)
		if all == nil {
			continue
		}
		message, err := strconv.Unquote(which(all))
		require.NoError(t, err, "%s: %s", file, call)
		at := file
		if low.MatchString(call) {
			at = quiet
		}
		if strings.Contains(message, " ") {
			add(messages, message, at)
		}
	}
}

// inCode collects the messages of the library.
func inCode(t *testing.T) map[string]string {
	t.Helper()
	messages := map[string]string{}
	require.NoError(t, filepath.WalkDir(filepath.Join(top, "core"), func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "nvml" || strings.HasSuffix(d.Name(), "test")):
			return filepath.SkipDir // what NVML answers is never logged
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			of(t, messages, path)
		}
		return nil
	}))
	for _, pattern := range []string{"capi/*.go", "capi/*/*.go", "capi/*.c", "capi/*/*.c"} {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				of(t, messages, file)
			}
		}
	}
	return messages
}

// onPage collects the lines in the first column of the tables of "By log line".
func onPage(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## By log line\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	lines := map[string]bool{}
	for _, row := range strings.Split(section, "\n") {
		if !strings.HasPrefix(row, "| `") {
			continue
		}
		cells := strings.Split(row, " | ")
		require.Len(t, cells, 2, row)
		require.Greater(t, len(strings.TrimSuffix(cells[1], " |")), 3, "no advice: %s", row)
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			require.False(t, lines[m[1]], "twice on the page: %s", m[1])
			lines[m[1]] = true
		}
	}
	return lines
}

// advice matches a message that says after its last semicolon or colon what to do.
var advice = regexp.MustCompile(`[;:] (?:allocate|ask|call|close|correct|copy|create|fork|install|let|load|look|open|or|pass|pin|put|raise|report|see|set|synchronise|unpin|unset|update|use|in)\b[^;]*$`)

func TestEachLogLineIsOnThePage(t *testing.T) {
	code, lines := inCode(t), onPage(t)
	var missing, gone []string
	for message, file := range code {
		if !lines[message] && file != quiet && !advice.MatchString(message) {
			missing = append(missing, filepath.Base(file)+": "+message)
		}
	}
	for line := range lines {
		if code[line] == "" {
			gone = append(gone, line)
		}
	}
	sort.Strings(missing)
	sort.Strings(gone)
	require.Empty(t, missing, "docs/troubleshooting.md lacks these lines of the library, which do not say themselves what to do:\n%s", strings.Join(missing, "\n"))
	require.Empty(t, gone, "docs/troubleshooting.md has lines that the library does not:\n%s", strings.Join(gone, "\n"))
}

// names collects the words of a kind in a file, but for those with an advice of their own.
func names(t *testing.T, file, kind string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	set := map[string]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		if strings.Contains(line, "Advice:") {
			continue
		}
		for _, name := range regexp.MustCompile(kind).FindAllString(line, -1) {
			set[name] = true
		}
	}
	var list []string
	for name := range set {
		list = append(list, name)
	}
	sort.Strings(list)
	return list
}

// The names of NVIDIA's statuses and CUDA's results that lines end with, without what to do.
func TestStatusesAreOnThePage(t *testing.T) {
	const status, result = `\bNV_ERR_[A-Z_]+`, `\bCUDA_ERROR_[A-Z_]+`
	require.Equal(t, names(t, top+"/core/internal/rm/status.go", status), names(t, page, status))
	require.Equal(t, names(t, top+"/core/cuda/result.go", result), names(t, page, result))
}
