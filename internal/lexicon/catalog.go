package lexicon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// A Catalog is a set of schemas.
type Catalog struct {
	definitions map[string]*definition
	records     map[string]*recordType
	names       []string // names of the objects, by number
}

// A File is a schema file.
type File struct {
	Path string // in its folder; empty: unknown
	JSON []byte
}

// New returns the catalog of schemas.
func New(schemas ...[]byte) (*Catalog, error) {
	files := make([]File, len(schemas))
	for i, raw := range schemas {
		files[i].JSON = raw
	}
	return OfFiles(files)
}

// OfFiles returns the catalog of schema files. If a file cannot be used, there is no
// catalog, and the error names every such file. Keep the catalog that you have.
func OfFiles(files []File) (*Catalog, error) {
	c := &Catalog{definitions: map[string]*definition{}, records: map[string]*recordType{}}
	var bad []error
	first := map[string]string{}
	for _, f := range files {
		id, definitions, err := parse(f.JSON)
		if other, twice := first[id]; twice && err == nil {
			if err = fmt.Errorf("two schemas define %s", id); other != "" {
				err = fmt.Errorf("%w: this one and %s", err, other)
			}
		}
		if err != nil && f.Path != "" {
			err = fmt.Errorf("%s: %w", f.Path, err)
		}
		bad, first[id] = append(bad, err), f.Path
		for _, d := range definitions {
			c.definitions[d.name] = d
		}
	}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	return c, c.link()
}

// Files returns all .json files in a folder and the folders in it.
func Files(folder fs.FS) ([]File, error) {
	var files []File
	err := fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		f, err := folder.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		raw, err := io.ReadAll(io.LimitReader(f, maxSchema+1))
		files = append(files, File{path, raw})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load lexicons: %w", err)
	}
	return files, nil
}

// Load returns the catalog of the schemas in a folder.
func Load(folder fs.FS) (*Catalog, error) {
	files, err := Files(folder)
	if err != nil {
		return nil, err
	}
	return OfFiles(files)
}

// link connects the references between definitions. A definition that is not in the
// catalog, or is not known, stays open: only records that need it are Unknown.
func (c *Catalog) link() error {
	var bad []error
	for _, name := range sorted(c.definitions) {
		d := c.definitions[name]
		for _, r := range d.refs {
			target := c.definitions[r.name]
			if target != nil && target.typ == nil && !target.unknown {
				bad = append(bad, fmt.Errorf("definition %s refers to %s: a %s is not data", name, r.name, target.is))
			} else if target != nil && !target.unknown {
				r.target = target.typ
			}
		}
		switch t := d.typ.(type) {
		case *recordType:
			t.object.number = c.name(name)
			c.records[name] = t
		case *objectType:
			t.number = c.name(name)
		}
	}
	if err := errors.Join(bad...); err != nil {
		return err
	}
	for name, r := range c.records {
		r.hash = c.hash(name)
	}
	return nil
}

func (c *Catalog) name(name string) uint32 {
	c.names = append(c.names, name)
	return uint32(len(c.names))
}

// Collections returns the collections that the catalog has a schema for, sorted.
func (c *Catalog) Collections() []string { return sorted(c.records) }

// Strictly returns the same catalog, but the records of some collections are compared
// strictly. Their hashes differ. Strict comparison refuses what the protocol allows
// because schemas evolve: fields that the schema does not declare, values outside the
// known ones, members of open unions that the schema does not list, and integers that
// JavaScript rounds.
func (c *Catalog) Strictly(collections func(collection string) bool) *Catalog {
	strict := *c
	strict.records = make(map[string]*recordType, len(c.records))
	for name, r := range c.records {
		if collections(name) && !r.strict {
			sum := sha256.Sum256([]byte("strict " + r.hash))
			r = &recordType{object: r.object, key: r.key, hash: hex.EncodeToString(sum[:]), strict: true}
		}
		strict.records[name] = r
	}
	return &strict
}

// Hash returns a hash of the schema of a collection and of every definition that it
// uses, or "" if there is no schema. A verdict is valid as long as the hash is the same.
func (c *Catalog) Hash(collection string) string {
	if r := c.records[collection]; r != nil {
		return r.hash
	}
	return ""
}

// hash covers the definitions that can be reached from a definition.
func (c *Catalog) hash(from string) string {
	reached := map[string]bool{from: true}
	for open := []string{from}; len(open) > 0; {
		d := c.definitions[open[0]]
		open = open[1:]
		if d == nil {
			continue
		}
		for _, r := range d.refs {
			if !reached[r.name] {
				reached[r.name] = true
				open = append(open, r.name)
			}
		}
	}
	h := sha256.New()
	for _, name := range sorted(reached) {
		var content []byte
		if d := c.definitions[name]; d != nil {
			content = d.content
		}
		fmt.Fprintf(h, "%s %d %s\n", name, len(content), content)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func sorted[T any](m map[string]T) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
