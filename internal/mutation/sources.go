package main

import (
	"io/fs"
	"path"
)

// sources is a checkout without the files that the tests do not need.
type sources struct{ fs.FS }

func (s sources) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(s.FS, name)
	if name != "." {
		return entries, err
	}
	var kept []fs.DirEntry
	for _, e := range entries {
		if ext := path.Ext(e.Name()); e.Name() == "internal" || ext == ".go" || ext == ".sql" || ext == ".md" || ext == ".mod" || ext == ".sum" {
			kept = append(kept, e)
		}
	}
	return kept, err
}
