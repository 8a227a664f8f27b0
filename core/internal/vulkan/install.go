package vulkan

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"gdrapi/core/dl"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// installHint says what a machine without a usable Vulkan driver lacks.
const installHint = "let VK_DRIVER_FILES name the NVIDIA driver's nvidia_icd.json, and have the libraries it needs (libegl1 and libgl1 on Debian)"

// manifestDirs has the folders where the Vulkan loader looks for the manifests of
// drivers, except for those of a user.
var manifestDirs = []string{
	"/etc/vulkan/icd.d",
	"/usr/local/share/vulkan/icd.d",
	"/usr/share/vulkan/icd.d",
	"/usr/local/etc/vulkan/icd.d",
}

// found has the driverFiles with which a driver was found. That driver stays loaded, so
// lookForDriver need not look again.
var found sync.Map

// lookForDriver checks that there is a manifest of an NVIDIA driver, and that the library
// in it loads. It calls no function of that library, not even through the Vulkan loader:
// a library that has been called fails in every child that is forked later.
func lookForDriver(driverFiles string) error {
	if _, ok := found.Load(driverFiles); ok {
		return nil
	}
	var reasons []string
	for _, path := range manifests(driverFiles) {
		err := loadDriver(path)
		if err == nil {
			found.Store(driverFiles, nil)
			return nil
		}
		reasons = append(reasons, fmt.Sprintf(" (%s: %v)", path, err))
	}
	return fmt.Errorf("no NVIDIA Vulkan driver is installed; %s%s: %w", installHint, strings.Join(reasons, ""), unix.ENODEV)
}

// manifests lists the files that may describe an NVIDIA driver. These are the files that
// the host names. Where it names none, they are those in the usual folders with a
// matching name.
func manifests(driverFiles string) []string {
	var paths []string
	if driverFiles == "" {
		for _, dir := range manifestDirs {
			paths = append(paths, jsonFiles(dir, "nvidia")...)
		}
		return paths
	}
	for _, p := range filepath.SplitList(driverFiles) {
		if inside := jsonFiles(p, ""); inside != nil {
			paths = append(paths, inside...)
		} else {
			paths = append(paths, p)
		}
	}
	return paths
}

// jsonFiles lists the .json files of a folder that have part in their name.
func jsonFiles(dir, part string) []string {
	names, _ := sys.ReadDir(dir) // one that is not there has none
	var paths []string
	for _, name := range names {
		if strings.HasSuffix(name, ".json") && strings.Contains(name, part) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}

// manifestLimit is far more than a manifest has; NVIDIA's has 140 bytes.
const manifestLimit = 64 << 10

// loadDriver loads the library that a manifest names. The library stays loaded, because
// the Vulkan loader needs it later.
func loadDriver(manifest string) error {
	text, err := sys.ReadFile(manifest, manifestLimit)
	if err != nil {
		return err
	}
	var m struct {
		ICD struct {
			LibraryPath string `json:"library_path"`
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	lib := m.ICD.LibraryPath
	if strings.Contains(lib, "/") && !filepath.IsAbs(lib) {
		lib = filepath.Join(filepath.Dir(manifest), lib)
	}
	if lib == "" {
		return fmt.Errorf("it names no library: %w", unix.EINVAL)
	}
	_, err = dl.Open(lib)
	return err
}
