package backend

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The version stands where Go's constants cannot be read, too. The module has
// the release's number, which modinfo, dkms and a reader of /usr/src see.
func TestVersionIsOneEverywhere(t *testing.T) {
	text := fmt.Sprintf("%d.%d", Major, Minor)
	release := text + ".0"
	for file, lines := range map[string][]string{
		"include/gdrapi.h":   {fmt.Sprintf("#define GDR_API_MAJOR_VERSION %d", Major), fmt.Sprintf("#define GDR_API_MINOR_VERSION %d", Minor)},
		"kmod/gdrdrv_uapi.h": {fmt.Sprintf("#define GDRDRV_MAJOR_VERSION %d", Major), fmt.Sprintf("#define GDRDRV_MINOR_VERSION %d", Minor)},
		"kmod/main.c":        {fmt.Sprintf("MODULE_VERSION(%q);", release)},
		"kmod/Makefile":      {"VERSION := " + release},
		"Makefile":           {"VERSION  := " + text},

		"packaging/rpm/gdrapi.spec": {"%global dkmsversion " + release, "Version:        " + release},
	} {
		all, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		for _, line := range lines {
			require.Contains(t, strings.Split(string(all), "\n"), line, file)
		}
	}
}
