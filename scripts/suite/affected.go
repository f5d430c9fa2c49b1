package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// listed is a package as `go list` describes it.
type listed struct {
	ImportPath, Name, Dir           string
	Deps, TestImports, XTestImports []string
	TestGoFiles, XTestGoFiles       []string
	Module                          struct{ Dir string }
	folder                          string // from the root of the module, "." for the root
	tests                           string // the text of its tests
}

// affected returns the packages in dir's module whose tests a change since the commit base can turn
// red: the one in the root, those of the changed files, those that import them, also in tests only,
// and those whose tests name a changed file that is not Go's, or a changed program. Without a base, it is the merge base
// with the upstream branch, or else the commit before the last one.
func affected(ctx context.Context, dir, base string) ([]string, error) {
	changed, err := changedFiles(ctx, dir, base)
	if err != nil {
		return nil, err
	}
	packages, err := list(ctx, dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range packages {
		if slices.ContainsFunc(changed, func(file string) bool { return packages[i].affectedBy(file, packages) }) {
			names = append(names, packages[i].ImportPath)
		}
	}
	return names, nil
}

// affectedBy reports whether a change of the file can turn a test of the package red.
func (p *listed) affectedBy(file string, all []listed) bool {
	if file == "go.mod" || file == "go.sum" {
		return true
	}
	changed := home(file, all)
	if changed == nil {
		return false
	}
	if p == changed || p.folder == "." { // the tests in the root read the whole tree
		return true
	}
	if !strings.HasSuffix(file, ".go") && (strings.Contains(p.tests, path.Base(file)) || path.Dir(file) != "." && strings.Contains(p.tests,
		path.Dir(file)+"/")) {
		return true
	}
	if strings.HasSuffix(file, "_test.go") {
		return false
	}
	return p.uses(changed) || slices.ContainsFunc(all, func(q listed) bool {
		return (slices.Contains(p.TestImports, q.ImportPath) || slices.Contains(p.XTestImports, q.ImportPath) ||
			q.Name == "main" && strings.Contains(p.tests, q.folder)) && q.uses(changed)
	})
}

// uses reports whether the package is the other one, or imports it.
func (p *listed) uses(other *listed) bool {
	return p.ImportPath == other.ImportPath || slices.Contains(p.Deps, other.ImportPath)
}

// home returns the package of the file's folder, or of the nearest folder above, or nil.
func home(file string, all []listed) *listed {
	for folder := path.Dir(file); ; folder = path.Dir(folder) {
		if i := slices.IndexFunc(all, func(p listed) bool { return p.folder == folder }); i >= 0 {
			return &all[i]
		}
		if folder == "." {
			return nil
		}
	}
}

// list describes the packages of dir's module.
func list(ctx context.Context, dir string) ([]listed, error) {
	out, err := output(ctx, dir, "go", "list", "-json=ImportPath,Name,Dir,Deps,TestImports,XTestImports,TestGoFiles,XTestGoFiles,Module",
		"./...")
	if err != nil {
		return nil, err
	}
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		if p.folder, err = filepath.Rel(p.Module.Dir, p.Dir); err != nil {
			return nil, fmt.Errorf("find the folder of %s: %w", p.ImportPath, err)
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, fmt.Errorf("read the tests of %s: %w", p.ImportPath, err)
			}
			p.tests += string(text)
		}
		all = append(all, p)
	}
}

// changedFiles returns the files that differ from the commit base, also those that git does not know.
func changedFiles(ctx context.Context, dir, base string) ([]string, error) {
	if base == "" {
		found, err := output(ctx, dir, "git", "merge-base", "HEAD", "@{upstream}")
		if err != nil { // there is no upstream branch
			found = "HEAD~"
		}
		base = strings.TrimSpace(found)
	}
	differ, err := output(ctx, dir, "git", "diff", "--name-only", "--no-renames", base, "--")
	if err != nil {
		return nil, err
	}
	unknown, err := output(ctx, dir, "git", "ls-files", "--others", "--exclude-standard")
	return strings.Fields(differ + unknown), err
}

// output returns what a command prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir = dir
	out, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}
