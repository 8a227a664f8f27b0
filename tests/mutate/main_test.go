package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each change of the list can be made: its lines are in the file once.
func TestEachChangeCanBeMade(t *testing.T) {
	suites, changes, err := read("changes.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(changes), 100)
	for _, c := range changes {
		text, err := os.ReadFile(filepath.Join("..", "..", c.file))
		require.NoError(t, err, "line %d", c.line)
		require.Equal(t, 1, strings.Count(string(text), c.old), "changes.txt:%d: %s", c.line, c.file)
		require.NotEqual(t, c.old, c.new, "line %d", c.line)
		require.NotEmpty(t, suites[c.suite].test, "line %d", c.line)
	}
}
