package rm

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/rm.md has each request, class and control of abi.go, for whoever runs a sandbox.
func TestPageHasTheRequests(t *testing.T) {
	source, err := os.ReadFile("abi.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../../docs/rm.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## The requests\n")
	section, _, _ = strings.Cut(section, "\n## ")
	made := regexp.MustCompile(`(?m)^\t(?:nr|class|control)[A-Z]\w* += (\w+)`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(made), 20)
	for _, m := range made {
		code, err := strconv.ParseUint(m[1], 0, 32)
		require.NoError(t, err)
		require.Regexp(t, fmt.Sprintf(`\b(0x%X|%d)\b`, code, code), section)
	}
}
