package facts

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// LibraryNames are the names by which consumers load libgdrapi.
var LibraryNames = []string{"libgdrapi.so.2", "libgdrapi.so"}

// skipped lists the files that the loader passes over on its way through the folders. It looks further
// where it may not open a file, and where a file is of another architecture; a file that is
// broken in another way is an error. [glibc elf/dl-load.c, open_path and open_verify]
func (r Root) skipped(folders []string) []Skipped {
	var list []Skipped
	for _, name := range LibraryNames {
		for _, dir := range folders {
			path := filepath.Join(dir, name)
			why, found := r.passedOver(path)
			if found && why == "" {
				break
			}
			if found {
				list = append(list, Skipped{path, why})
			}
		}
	}
	return list
}

// passedOver says why the loader does not take a file, "" if it does.
func (r Root) passedOver(path string) (why string, found bool) {
	if _, err := os.Lstat(r.path(path)); err != nil {
		return "", false
	}
	f, err := os.Open(r.path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it is a link that leads nowhere", true
	case errors.Is(err, fs.ErrPermission):
		return "this user may not read it", true
	case err != nil:
		return "", true
	}
	defer f.Close()
	var head [20]byte
	_, err = io.ReadFull(f, head[:])
	class, machine := elf.Class(head[elf.EI_CLASS]), elf.Machine(binary.LittleEndian.Uint16(head[18:]))
	ours := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if err == nil && string(head[:4]) == elf.ELFMAG && (class != elf.ELFCLASS64 || machine != ours) {
		return fmt.Sprintf("it is of another architecture (%v, %v)", machine, class), true
	}
	return "", true
}
