package rm

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/rm.md has each request, class and control of abi.go, for whoever runs a sandbox.
func TestPageHasTheRequests(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "abi.go", nil, 0)
	require.NoError(t, err)
	var made []uint64
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && regexp.MustCompile(`^(nr|class|control)[A-Z]`).MatchString(v.Names[0].Name) {
			code, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 0, 32)
			require.NoError(t, err)
			made = append(made, code)
		}
		return true
	})
	page, err := os.ReadFile("../../../docs/rm.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## The requests\n")
	section, _, _ = strings.Cut(section, "\n## ")
	require.Greater(t, len(made), 20)
	for _, code := range made {
		require.Regexp(t, fmt.Sprintf(`\b(0x%X|%d)\b`, code, code), section)
	}
}
