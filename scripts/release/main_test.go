package main

import (
	"slices"
	"testing"
)

// Every module of the checkout is either published or not.
func TestModules(t *testing.T) {
	if err := checkModules("../.."); err != nil {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	for version, valid := range map[string]bool{
		"v0.1.0": true, "v1.2.3-rc.1": true,
		"0.1.0": false, "v0.1": false, "v2.0.0": false, "v0.1.0+build": false, "": false,
	} {
		if err := checkVersion(version); (err == nil) != valid {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestTags(t *testing.T) {
	all := tags("v0.1.0")
	for _, want := range []string{"v0.1.0", "cmd/mysqllock/v0.1.0", "metrics/otel/v0.1.0"} {
		if !slices.Contains(all, want) {
			t.Errorf("no tag %s in %q", want, all)
		}
	}
}
