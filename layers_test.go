package weir_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/weir-social/weir"

// A layer is packages that may import the same ones of ours. A name that ends in "/" stands for
// everything below it.
type layer struct {
	packages []string
	may      []string
}

// layers lists the layers, the commands first. The first one that names a package applies to it.
func layers() []layer {
	return []layer{
		{[]string{"cmd/", "e2e", "examples/", "scripts/"}, []string{"app", "jobs", "schema", "workers", "workers/", "feature", "internal/"}},
		{[]string{"app"}, []string{"consumer", "consumer/", "jobs", "schema", "workers", "workers/", "feature", "internal/"}},

		// What imports nothing of Weir's but each other.
		{leaves(), leaves()},

		// The core.
		{[]string{"schema"}, append(leaves(), "jobs")},
		{[]string{"consumer"}, append(leaves(), "schema")},
		{[]string{"consumer/"}, append(leaves(), "consumer", "consumer/", "internal/nostr/negentropy")}, // no database
		{[]string{"workers"}, append(leaves(), "internal/atproto/", "internal/history", "internal/ops/health", "schema")},
		{[]string{"feature"}, []string{
			"consumer", "consumer/socket", "internal/atproto/bluesky", "internal/collection", "internal/ops/", "internal/web", "schema",
			"workers",
		}},
		{[]string{"workers/nostr"}, append(leaves(), "consumer", "consumer/nostr", "consumer/socket", "feature", "internal/nostr/",
			"internal/ops/health", "internal/web/nostr", "schema", "workers")},
		{[]string{"workers/links", "workers/cards"}, append(leaves(), "feature", "internal/web/links", "internal/atproto/", "internal/links/",
			"internal/ops/health", "internal/ranking", "schema", "workers")},
		{[]string{"workers/lexicons"}, append(leaves(), "consumer/firehose", "feature", "internal/atproto/", "internal/lexicon",
			"internal/lexicon/", "internal/web/records", "schema", "workers")},

		// The page knows none of its parts.
		{[]string{"internal/web"}, []string{"internal/ops/health", "schema"}},
		{[]string{"internal/web/links"}, append(leaves(), "internal/ranking", "internal/web", "schema")},
		{[]string{"internal/web/links/linkstest"}, []string{"internal/testing/webtest"}},
		{[]string{"internal/web/nostr"}, append(leaves(), "internal/web")},
		{[]string{"internal/web/records"}, append(leaves(), "internal/lexicon/records", "internal/web", "schema")},
		{[]string{"internal/web/feeds"}, []string{"feature", "internal/ranking", "internal/ranking/feeds", "internal/web", "internal/web/links"}},
		{[]string{"internal/web/riverui"}, []string{"feature", "workers"}},
		{[]string{"internal/testing/"}, append(leaves(), "internal/atproto/bluesky", "internal/testing/", "schema")},
		{[]string{"internal/ops/"}, append(leaves(), "internal/history", "internal/nostr/", "consumer", "jobs", "schema")},

		// The features.
		{[]string{"internal/archive/recovery"}, append(leaves(), "internal/archive", "internal/archive/", "consumer", "consumer/recording",
			"schema")},
		{[]string{"internal/archive/work"}, append(leaves(), "consumer", "consumer/jetstream", "feature", "internal/archive", "internal/archive/",
			"internal/ops/", "schema", "workers")},
		{[]string{"internal/clickhouse", "internal/clickhouse/"}, append(leaves(), "consumer", "feature", "internal/archive", "internal/archive/",
			"internal/links/link", "internal/ops/", "internal/testing/", "internal/web", "schema", "workers")},
		{[]string{"internal/archive", "internal/archive/"}, append(leaves(), "internal/archive", "internal/archive/", "internal/testing/",
			"consumer", "schema")},
		{[]string{"internal/lexicon", "internal/lexicon/"}, append(leaves(), "internal/lexicon", "internal/lexicon/", "schema")},
		{[]string{"internal/nostr/"}, append(leaves(), "internal/nostr/", "internal/ops/health", "schema")},
		{[]string{"internal/links/commands"}, append(leaves(), "feature", "internal/links/link", "internal/ops/trace", "internal/ranking",
			"internal/web", "internal/web/links", "schema")},
		{[]string{"internal/links/", "internal/ranking"}, append(leaves(), "internal/links/", "internal/ops/compare", "internal/ops/health",
			"schema")},
		{[]string{"internal/ranking/feeds"}, []string{"internal/ranking", "schema"}},
		{[]string{"internal/atproto/", "internal/history"}, append(leaves(), "schema")},
	}
}

// leaves are the packages below all others.
func leaves() []string {
	return []string{"consumer/jetstream/dictionary", "internal/atproto/syntax", "internal/bisect", "internal/collection",
		"internal/crashpoint", "internal/guard", "internal/guard/", "internal/nostr", "internal/output", "internal/retry",
		"internal/testing/eventually", "internal/testing/loopback", "internal/words", "jobs"}
}

// names reports whether a list of packages names one.
func names(list []string, name string) bool {
	return slices.ContainsFunc(list, func(n string) bool { return n == name || strings.HasSuffix(n, "/") && strings.HasPrefix(name, n) })
}

// TestImportsRunOneWay also fails for a package in no layer.
func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	require.NoError(t, err)
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		i := slices.IndexFunc(layers(), func(l layer) bool { return names(l.packages, name) })
		require.True(t, i >= 0 || name == "", "package %s is in no layer", name)
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
				require.True(t, names(layers()[i].may, ours), "%s may not import %s", name, ours)
			}
		}
	}
}

// TestFeaturesCanBeRemoved shows that nothing but app/features.go imports a feature that scripts/without.sh removes:
// the rest builds without it.
func TestFeaturesCanBeRemoved(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("scripts/without.sh")
	require.NoError(t, err)
	lists := regexp.MustCompile(`\n\t\[(\w+)\]="([^"]+)"`).FindAllStringSubmatch(string(script), -1)
	require.Len(t, lists, 8)
	below := func(folders []string, path string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir() && (below([]string{"e2e", "examples"}, path) || strings.HasPrefix(path, ".") && path != "."):
			return cmp.Or(err, filepath.SkipDir)
		case !strings.HasSuffix(path, ".go") || path == "app/features.go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range file.Imports {
			ours, ok := strings.CutPrefix(strings.Trim(imported.Path.Value, `"`), module+"/")
			for _, l := range lists {
				gone := strings.Fields(l[2])
				require.False(t, ok && below(gone, ours) && !below(gone, path), "%s imports %s: the feature %s cannot be removed", path, ours, l[1])
			}
		}
		return nil
	}))
}
