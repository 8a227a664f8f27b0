// SPDX-License-Identifier: MIT

package suite

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newer says whether a file is newer than the one that is made of it, or not there.
func newer(files []string, made string) bool {
	than, err := os.Stat(made)
	return err != nil || slices.ContainsFunc(files, func(file string) bool {
		info, err := os.Stat(file)
		return err != nil || info.ModTime().After(than.ModTime())
	})
}

// make builds each object anew after a header changes that its source includes, be it by another
// header, and the library after each of its own. What make knows is compared with what the sources say.
func TestHeaders(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	t.Chdir(top)
	build := os.Getenv("B")
	if build == "" {
		build = "build"
	}
	// Its status says that something is to be made.
	printed, _ := exec.Command("make", "-npq", "B="+build, "version").Output()
	knows := map[string]map[string]bool{}
	for line := range strings.Lines(string(printed)) {
		target, needs, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || !strings.HasPrefix(target, build+"/") {
			continue
		}
		known := map[string]bool{}
		for _, file := range strings.Fields(needs) {
			known[filepath.Clean(file)] = true
		}
		knows[target] = known
	}
	include := regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)
	folders := []string{"include", "tools", "capi", "examples", filepath.Join(build, "tests"), "tests/c"}
	var missing func(file string, known, seen map[string]bool) []string
	missing = func(file string, known, seen map[string]bool) (all []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range include.FindAllStringSubmatch(string(text), -1) {
			for _, folder := range append([]string{filepath.Dir(file)}, folders...) {
				header := filepath.Join(folder, m[1])
				if _, err := os.Stat(header); err != nil || seen[header] {
					continue
				}
				seen[header] = true
				if !known[header] {
					all = append(all, header)
				}
				all = append(all, missing(header, known, seen)...)
				break
			}
		}
		return all
	}
	objects := 0
	err = filepath.WalkDir(build+"/obj", func(path string, _ os.DirEntry, err error) error {
		base, ok := strings.CutSuffix(path, ".o")
		machine := base[strings.LastIndexByte(base, '_')+1:]
		if err != nil || !ok || machine != runtime.GOARCH && (machine == "amd64" || machine == "arm64") {
			return err // of another machine it is empty
		}
		source := strings.TrimPrefix(base, build+"/obj/") + ".c"
		if _, err := os.Stat(source); err != nil {
			source += "pp"
		}
		if newer(append(slices.Collect(maps.Keys(knows[path])), source), path) {
			return nil // the source went, or it is built anew as it is
		}
		objects++
		require.Empty(t, missing(source, knows[path], map[string]bool{}), path)
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, objects, 50, "make tools doubles comes first")
	library, err := filepath.Glob(build + "/libgdrapi.so.2.*")
	require.NoError(t, err)
	require.Len(t, library, 1)
	for _, pattern := range []string{"include/gdr*.h", "capi/*.h", "capi/*/*.h"} {
		headers, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, h := range headers {
			require.Contains(t, knows[library[0]], h)
		}
	}
}
