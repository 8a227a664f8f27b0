// SPDX-License-Identifier: MIT

// Command sbom writes which Go modules are linked into the given programs and
// libraries, as a CycloneDX 1.5 document. It reads what the Go linker recorded in them
// (go version -m shows the same), so that it tells of what is shipped, not of what
// go.mod allows.
//
//	sbom -version VERSION [-epoch SECONDS] [-sum go.sum] [-o FILE] BINARY...
//
// The same input gives the same bytes.
package main

import (
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// licences of the modules that may be linked in, as SPDX names them. A new one must be
// looked at, and its text goes into packaging/deb/debian/copyright.
var licences = map[string]string{
	"std":                          "BSD-3-Clause",
	"github.com/ebitengine/purego": "Apache-2.0",
	"golang.org/x/sys":             "BSD-3-Clause",
}

// The part of CycloneDX 1.5 that is written.
type (
	bom struct {
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Licences   []licence  `json:"licenses"`
		Purl       string     `json:"purl"`
		Properties []property `json:"properties,omitempty"`
	}
	licence struct {
		Licence struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

func licensed(id string) []licence {
	var l licence
	l.Licence.ID = id
	return []licence{l}
}

// readSums returns the lines of a go.sum: "path version" to the base64 of a SHA-256.
func readSums(r io.Reader) (map[string]string, error) {
	sums := make(map[string]string)
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) != 3 {
			return nil, fmt.Errorf("go.sum: not three words: %q", s.Text())
		}
		if sum, ok := strings.CutPrefix(f[2], "h1:"); ok {
			sums[f[0]+" "+f[1]] = sum
		}
	}
	return sums, s.Err()
}

// module returns the component of one module. Its hash is that of go.sum, of a list of
// the module's files, which is not the hash of any one file: hence a property.
func module(path, version string, sums map[string]string) (component, error) {
	id, ok := licences[path]
	if !ok {
		return component{}, fmt.Errorf("module %s: its licence is not known: add it to packaging/sbom and to packaging/deb/debian/copyright", path)
	}
	purl := "pkg:golang/" + path + "@" + version
	c := component{Type: "library", Ref: purl, Name: path, Version: version, Licences: licensed(id), Purl: purl}
	if path == "std" {
		return c, nil
	}
	sum, ok := sums[path+" "+version]
	if !ok {
		return component{}, fmt.Errorf("module %s %s: not in go.sum", path, version)
	}
	if raw, err := base64.StdEncoding.DecodeString(sum); err != nil || len(raw) != sha256.Size {
		return component{}, fmt.Errorf("module %s %s: go.sum: bad sum %q", path, version, sum)
	}
	c.Properties = []property{{Name: "gdrapi:go.sum", Value: "h1:" + sum}}
	return c, nil
}

// file returns the component of one binary, by its base name. It has no hash: what is
// shipped is stripped later, by each packaging's own tools.
func file(path, version string) component {
	kind, name := "application", filepath.Base(path)
	if strings.Contains(name, ".so") {
		kind = "library"
	}
	return component{
		Type: kind, Ref: "file:" + name, Name: name, Version: version, Licences: licensed("MIT"),
		Purl: "pkg:generic/" + name + "@" + version,
	}
}

// uuid names a document by its content, as RFC 9562's version 8 allows.
func uuid(content []byte) string {
	h := sha256.Sum256(content)
	h[6] = h[6]&0x0f | 0x80
	h[8] = h[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

func build(version string, at time.Time, sums map[string]string, binaries []string) (*bom, error) {
	product := component{
		Type: "library", Ref: "gdrapi", Name: "gdrapi", Version: version,
		Licences: licensed("MIT"), Purl: "pkg:generic/gdrapi@" + version,
	}
	b := &bom{
		Format: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata: metadata{Timestamp: at.UTC().Format(time.RFC3339), Component: product},
	}
	contains := dependency{Ref: product.Ref}
	modules := make(map[string]component)
	for _, path := range binaries {
		f := file(path, version)
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		uses := dependency{Ref: f.Ref}
		add := func(path, version string) error {
			c, err := module(path, version, sums)
			modules[c.Ref] = c
			uses.DependsOn = append(uses.DependsOn, c.Ref)
			return err
		}
		errs := []error{add("std", strings.TrimPrefix(info.GoVersion, "go"))}
		for _, d := range info.Deps {
			errs = append(errs, add(d.Path, d.Version))
		}
		if err := errors.Join(errs...); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		b.Components = append(b.Components, f)
		b.Dependencies = append(b.Dependencies, uses)
		contains.DependsOn = append(contains.DependsOn, f.Ref)
	}
	for _, c := range modules {
		b.Components = append(b.Components, c)
		b.Dependencies = append(b.Dependencies, dependency{Ref: c.Ref, DependsOn: []string{}})
	}
	b.Dependencies = append(b.Dependencies, contains)
	sort.Slice(b.Components, func(i, j int) bool { return b.Components[i].Ref < b.Components[j].Ref })
	sort.Slice(b.Dependencies, func(i, j int) bool { return b.Dependencies[i].Ref < b.Dependencies[j].Ref })
	content, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	b.SerialNumber = uuid(content)
	return b, nil
}

func run() error {
	version := flag.String("version", "", "version of the product")
	epoch := flag.Int64("epoch", 0, "time of the document, in seconds since 1970")
	sum := flag.String("sum", "go.sum", "the go.sum of the product")
	out := flag.String("o", "", "file to write, instead of standard output")
	flag.Parse()
	if *version == "" || flag.NArg() == 0 {
		return errors.New("usage: sbom -version VERSION [-epoch SECONDS] [-sum go.sum] [-o FILE] BINARY [BINARY ...]")
	}
	f, err := os.Open(*sum)
	if err != nil {
		return err
	}
	defer f.Close()
	sums, err := readSums(f)
	if err != nil {
		return err
	}
	b, err := build(*version, time.Unix(*epoch, 0), sums, flag.Args())
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if *out == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(*out, text, 0o644)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}
