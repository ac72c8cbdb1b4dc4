package minibroker

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const advice = "Install it with `pip install minibroker` or `pipx install minibroker`, " +
	"or set MINIBROKER to the path of the executable."

const hasMinibroker = `import sys; from importlib.util import find_spec as f; sys.exit(not f("minibroker"))`

// The executable, if the folder had one when the package was built.
//
//go:embed bin
var packaged embed.FS

// findCommand returns the command of minibroker, or an error with all places that were searched.
func findCommand(files fs.FS) ([]string, error) {
	if chosen := os.Getenv("MINIBROKER"); chosen != "" {
		if path, err := exec.LookPath(chosen); err == nil {
			return []string{path}, nil
		}
		return nil, fmt.Errorf("MINIBROKER is %s, which is not an executable file. %s", chosen, advice)
	}
	if content, err := fs.ReadFile(files, "bin/minibroker"); err == nil {
		path, err := unpack(content)
		return []string{path}, err
	}
	if path, err := exec.LookPath("minibroker"); err == nil {
		return []string{path}, nil
	}
	var pythons []string
	for _, name := range []string{"python3", "python"} {
		if python, err := exec.LookPath(name); err == nil {
			if exec.Command(python, "-c", hasMinibroker).Run() == nil {
				return []string{python, "-m", "minibroker"}, nil
			}
			pythons = append(pythons, python)
		}
	}
	if pythons == nil {
		pythons = []string{"no python3 or python in PATH"}
	}
	return nil, fmt.Errorf("minibroker was not found. Searched: the environment variable MINIBROKER (not set), "+
		"bin/minibroker in the Go package, minibroker in PATH (%s), a Python with minibroker (%s). %s",
		os.Getenv("PATH"), strings.Join(pythons, ", "), advice)
}

// unpack writes the executable into the user's cache, once for each content.
func unpack(content []byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256(content)
	folder := filepath.Join(cache, "minibroker")
	path := filepath.Join(folder, "minibroker-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	temporary, err := os.CreateTemp(folder, "unpacking-")
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary.Name())
	if _, err = temporary.Write(content); err == nil {
		err = temporary.Chmod(0o700)
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	return path, err
}
