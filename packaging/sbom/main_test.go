// SPDX-License-Identifier: MIT

package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shipped is a program with modules, built for these tests: a test's own names none.
var shipped string

func TestMain(m *testing.M) { os.Exit(withProgram(m.Run)) }

func withProgram(run func() int) int {
	dir, err := os.MkdirTemp("", "sbom")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	shipped = filepath.Join(dir, "gdrcopy_doctor")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", shipped, "gdrapi/cmd/gdrcopy_doctor")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(string(out))
	}
	return run()
}

// document returns the SBOM of that program, decoded.
func document(t *testing.T) map[string]any {
	t.Helper()
	f, err := os.Open("../../go.sum")
	require.NoError(t, err)
	defer f.Close()
	sums, err := readSums(f)
	require.NoError(t, err)
	b, err := build("1.2.3", time.Unix(1000000000, 0), sums, []string{shipped})
	require.NoError(t, err)
	text, err := json.Marshal(b)
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(text, &doc))
	return doc
}

// The program, Go and each module that is linked in are there, and who depends on whom.
func TestComponents(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	refs := []any{"pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go")}
	for _, m := range []string{"github.com/ebitengine/purego", "golang.org/x/sys"} {
		v := regexp.MustCompile(regexp.QuoteMeta(m) + ` (v\S+)`).FindSubmatch(mod)
		require.NotNil(t, v, m)
		refs = append(refs, "pkg:golang/"+m+"@"+string(v[1]))
	}
	uses := map[string]any{"gdrapi": []any{"file:gdrcopy_doctor"}, "file:gdrcopy_doctor": refs}
	for _, ref := range refs {
		uses[ref.(string)] = []any{}
	}
	doc := document(t)
	got := map[string]any{}
	for _, d := range doc["dependencies"].([]any) {
		d := d.(map[string]any)
		got[d["ref"].(string)] = d["dependsOn"]
	}
	require.Equal(t, uses, got)
	require.Len(t, doc["components"], 4)
}

// What CycloneDX 1.5 requires of a document, and of each component that it has.
func TestRequiredFields(t *testing.T) {
	doc := document(t)
	require.Equal(t, "CycloneDX", doc["bomFormat"])
	require.Equal(t, "1.5", doc["specVersion"])
	require.EqualValues(t, 1, doc["version"])
	require.Regexp(t, `^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`, doc["serialNumber"])
	meta := doc["metadata"].(map[string]any)
	require.Equal(t, "2001-09-09T01:46:40Z", meta["timestamp"])

	all := append([]any{meta["component"]}, doc["components"].([]any)...)
	kinds := []string{"application", "library"}
	purl := regexp.MustCompile(`^pkg:(golang|generic)/[^@ ]+@[^@ ]+$`)
	refs := make(map[string]bool)
	for _, c := range all {
		c := c.(map[string]any)
		require.Contains(t, kinds, c["type"])
		require.NotEmpty(t, c["name"])
		require.NotEmpty(t, c["version"])
		require.Regexp(t, purl, c["purl"])
		if c["name"] == "std" {
			require.Equal(t, strings.TrimPrefix(runtime.Version(), "go"), c["version"])
		}
		ref := c["bom-ref"].(string)
		require.NotEmpty(t, ref)
		require.False(t, refs[ref], "bom-ref %s is there twice", ref)
		refs[ref] = true
		require.Len(t, c["licenses"], 1)
		id := c["licenses"].([]any)[0].(map[string]any)["license"].(map[string]any)["id"]
		require.Contains(t, []any{"MIT", "BSD-3-Clause", "Apache-2.0"}, id)
	}
	seen := make(map[string]bool)
	for _, d := range doc["dependencies"].([]any) {
		d := d.(map[string]any)
		ref := d["ref"].(string)
		require.True(t, refs[ref], "%s is no component", ref)
		require.False(t, seen[ref], "%s has two lists", ref)
		seen[ref] = true
		for _, on := range d["dependsOn"].([]any) {
			require.True(t, refs[on.(string)], "%s depends on %s, which is no component", ref, on)
		}
	}
	require.Equal(t, refs, seen, "each component has its list")
	require.True(t, sort.SliceIsSorted(doc["components"], func(i, j int) bool {
		c := doc["components"].([]any)
		return c[i].(map[string]any)["bom-ref"].(string) < c[j].(map[string]any)["bom-ref"].(string)
	}), "components stand in the order of their names")
	require.True(t, sort.SliceIsSorted(doc["dependencies"], func(i, j int) bool {
		d := doc["dependencies"].([]any)
		return d[i].(map[string]any)["ref"].(string) < d[j].(map[string]any)["ref"].(string)
	}), "and so do their lists")
}

func TestModules(t *testing.T) {
	sum := strings.Repeat("A", 43) + "="
	for _, tc := range []struct {
		name, path, version string
		sums                map[string]string
		want                string
	}{
		{"in go.sum", "golang.org/x/sys", "v1.0.0", map[string]string{"golang.org/x/sys v1.0.0": sum}, ""},
		{"Go's own", "std", "1.26.0", nil, ""},
		{"another version", "golang.org/x/sys", "v1.0.1", map[string]string{"golang.org/x/sys v1.0.0": sum}, "not in go.sum"},
		{"no go.sum", "golang.org/x/sys", "v1.0.0", nil, "not in go.sum"},
		{"no sum", "golang.org/x/sys", "v1.0.0", map[string]string{"golang.org/x/sys v1.0.0": "AAAA"}, "bad sum"},
		{"no licence", "example.com/new", "v1.0.0", map[string]string{"example.com/new v1.0.0": sum}, "its licence is not known"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := module(tc.path, tc.version, tc.sums)
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "pkg:golang/"+tc.path+"@"+tc.version, c.Purl)
			require.Equal(t, []string{"library", c.Purl, tc.path, tc.version, "BSD-3-Clause"}, []string{c.Type, c.Ref, c.Name, c.Version, c.Licences[0].Licence.ID})
			var want []property
			if tc.sums != nil {
				want = []property{{"gdrapi:go.sum", "h1:" + sum}}
			}
			require.Equal(t, want, c.Properties)
		})
	}
}

// command runs the program with these arguments.
func command(t *testing.T, args ...string) error {
	t.Helper()
	was, flags := os.Args, flag.CommandLine
	defer func() { os.Args, flag.CommandLine = was, flags }()
	os.Args, flag.CommandLine = append([]string{"sbom"}, args...), flag.NewFlagSet("sbom", flag.ContinueOnError)
	return run()
}

func TestCommand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "sbom.json")
	require.ErrorContains(t, command(t, "-version", "1"), "usage: sbom")
	require.ErrorContains(t, command(t, shipped), "usage: sbom")
	require.ErrorContains(t, command(t, "-version", "1", "-o", out, shipped), "go.sum")
	require.ErrorContains(t, command(t, "-version", "1", "-sum", "main.go", "-o", out, shipped), "not three words")
	require.ErrorContains(t, command(t, "-version", "1", "-sum", "../../go.sum", "-o", out, "main.go"), "main.go")
	require.ErrorIs(t, command(t, "-version", "1", "-sum", "../../go.sum", "-o", "/none/sbom.json", shipped), os.ErrNotExist)
	require.NoFileExists(t, out)
	require.NoError(t, command(t, "-version", "1.2.3", "-epoch", "1000000000", "-sum", "../../go.sum", "-o", out, shipped))
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "{\n  \"bomFormat\": \"CycloneDX\",\n"))
	require.True(t, strings.HasSuffix(string(text), "\n}\n"))
	var doc map[string]any
	require.NoError(t, json.Unmarshal(text, &doc))
	require.Equal(t, document(t), doc)
}
