package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The wall clock of a worker cannot be set from outside: Go reads it without the C library, and Linux
// has no namespace for it. So workers are built with a time.Now whose wall clock reading jumps every
// 3 s, by up to a day, forward and back. The monotonic reading is unchanged.
const (
	wallRead = "sec, nsec, mono := runtimeNow()\n"
	wallJump = wallRead + "\tsec += [...]int64{0, 3600, -86400, 5, -5}[mono/3e9%5]\n"
)

// buildWorker builds this program with such a time.Now in dir, and returns the path of the program.
func buildWorker(dir string) (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), wallRead); n != 1 {
		return "", fmt.Errorf("%s reads the clock in %d places, not in one: try -wall=false", original, n)
	}
	changed := filepath.Join(dir, "time.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), wallRead, wallJump, 1)), 0o644); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return "", err
	}
	worker := filepath.Join(dir, "worker")
	if out, err := exec.Command("go", "build", "-overlay", list, "-o", worker, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return worker, nil
}
