package weir_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/weir-social/weir"

// layers lists which of our packages each of our packages imports: in one
// direction, from the commands down to the leaves. A new edge is one reviewed
// line here.
func layers() map[string][]string {
	return map[string][]string{
		"cmd/weir": {"app", "archive", "archive/catalog", "archive/clickhouse", "bluesky", "crashpoint", "devpg", "history", "link", "ops/compare", "ops/doctor", "ops/health", "ops/trace", "ranking", "schema", "simnet", "web", "workers"},
		"app":      {"archive", "archive/catalog", "archive/clickhouse", "archive/dir", "archive/s3", "bluesky", "card", "collection", "consumer", "consumer/firehose", "consumer/jetstream", "consumer/nostr", "consumer/recording", "consumer/socket", "devpg", "guard", "history", "jobs", "lexicon/rules", "nostr", "nostr/directory", "nostr/negentropy", "ops/compare", "ops/doctor", "ops/health", "ranking", "redirect", "retry", "schema", "syntax", "web", "wellknown", "workers"},
		"e2e":      {},

		"scripts/suite": {"devpg"},

		"examples/likes": {"app", "jobs", "schema", "workers"},

		"consumer":                      {"archive", "crashpoint", "retry", "schema"},
		"consumer/firehose":             {"consumer", "consumer/socket", "syntax"},
		"consumer/jetstream":            {"consumer", "consumer/jetstream/dictionary", "consumer/socket", "syntax"},
		"consumer/jetstream/dictionary": {},
		"consumer/nostr":                {"archive", "consumer", "consumer/socket", "nostr", "nostr/negentropy"},
		"consumer/recording":            {"consumer"},
		"consumer/socket":               {"consumer", "retry"},
		"workers":                       {"archive", "archive/catalog", "archive/clickhouse", "bluesky", "card", "collection", "crashpoint", "history", "jobs", "lexicon", "lexicon/rules", "link", "nostr", "nostr/directory", "ops/health", "ranking", "records", "redirect", "retry", "schema", "verdict", "wellknown"},
		"ops/compare":                   {},
		"ops/doctor":                    {"consumer", "schema"},
		"ops/health":                    {"archive/catalog", "history", "jobs", "nostr/directory", "schema"},
		"ops/trace":                     {"collection", "link", "ranking", "schema"},
		"web":                           {"nostr", "ops/health", "ranking", "records", "schema", "syntax"},
		"web/browsertest":               {"eventually"},
		"ranking":                       {"link/title", "nostr", "ops/health", "schema"},
		"records":                       {"lexicon", "schema"},
		"verdict":                       {"lexicon", "schema"},

		"archive":                           {},
		"archive/archivetest":               {"archive"},
		"archive/catalog":                   {"archive", "schema"},
		"archive/clickhouse":                {"archive", "consumer", "link"},
		"archive/clickhouse/clickhousetest": {"eventually", "loopback"},
		"archive/dir":                       {"archive"},
		"archive/s3":                        {"archive"},
		"bluesky":                           {"guard", "retry"},
		"card":                              {"guard", "link", "link/title", "retry"},
		"collection":                        {},
		"crashpoint":                        {},
		"devpg":                             {"loopback"},
		"eventually":                        {},
		"guard":                             {},
		"guard/guardtest":                   {"guard"},
		"history":                           {"schema"},
		"jobs":                              {"link"},
		"link":                              {"link/title", "nostr"},
		"link/title":                        {},
		"redirect":                          {"guard", "link", "retry"},
		"loopback":                          {},
		"retry":                             {},
		"schema":                            {"archive", "collection"},
		"schema/schematest":                 {"devpg", "schema"},
		"simnet":                            {"consumer/jetstream/dictionary", "loopback"},
		"lexicon":                           {"syntax"},
		"lexicon/rules":                     {"lexicon", "syntax"},
		"nostr":                             {},
		"nostr/directory":                   {"schema"},
		"nostr/negentropy":                  {},
		"syntax":                            {},
		"wellknown":                         {"guard", "nostr"},
	}
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

// TestImportsRunOneWay also fails for a package that is not in the table, and
// for an edge of the table that no import uses.
func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	require.NoError(t, err)
	allowed := layers()
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	seen := 0
	for {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if name == "" {
			continue
		}
		seen++
		edges, ok := allowed[name]
		require.True(t, ok, "package %s is not in the table of layers", name)
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
				require.True(t, slices.Contains(edges, ours), "%s may not import %s: add the edge to layers() if it must", name, ours)
			}
		}
		for _, edge := range edges {
			require.True(t, slices.Contains(p.Imports, module+"/"+edge), "%s does not import %s any more: remove the edge from layers()", name, edge)
		}
	}
	require.Equal(t, len(allowed), seen, "the table names packages that are gone")
}
