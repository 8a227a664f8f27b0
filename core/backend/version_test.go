package backend

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The version stands where Go's constants cannot be read, too.
func TestVersionIsOneEverywhere(t *testing.T) {
	text := fmt.Sprintf("%d.%d", Major, Minor)
	for file, lines := range map[string][]string{
		"include/gdrapi.h":   {fmt.Sprintf("#define GDR_API_MAJOR_VERSION %d", Major), fmt.Sprintf("#define GDR_API_MINOR_VERSION %d", Minor)},
		"kmod/gdrdrv_uapi.h": {fmt.Sprintf("#define GDRDRV_MAJOR_VERSION %d", Major), fmt.Sprintf("#define GDRDRV_MINOR_VERSION %d", Minor)},
		"kmod/main.c":        {fmt.Sprintf("MODULE_VERSION(%q);", text)},
		"kmod/Makefile":      {"VERSION := " + text},
		"Makefile":           {"VERSION  := " + text},
	} {
		all, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		for _, line := range lines {
			require.Contains(t, strings.Split(string(all), "\n"), line, file)
		}
	}
}
