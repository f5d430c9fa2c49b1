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
		"cmd/weir": {"app", "internal/archive", "internal/archive/catalog", "internal/archive/clickhouse", "internal/atproto/bluesky", "internal/crashpoint", "internal/testing/devpg", "internal/history", "internal/links/link", "internal/ops/compare", "internal/ops/doctor", "internal/ops/health", "internal/ops/trace", "internal/ranking", "schema", "internal/testing/simnet", "internal/web", "workers"},
		"app":      {"internal/archive", "internal/archive/catalog", "internal/archive/clickhouse", "internal/archive/dir", "internal/archive/s3", "internal/atproto/bluesky", "internal/links/card", "internal/collection", "consumer", "consumer/firehose", "consumer/jetstream", "consumer/nostr", "consumer/recording", "consumer/socket", "internal/testing/devpg", "internal/guard", "internal/history", "jobs", "internal/lexicon/rules", "internal/nostr", "internal/nostr/directory", "internal/nostr/negentropy", "internal/ops/compare", "internal/ops/doctor", "internal/ops/health", "internal/ranking", "internal/links/redirect", "internal/retry", "schema", "internal/atproto/syntax", "internal/web", "internal/nostr/wellknown", "workers"},
		"e2e":      {},

		"scripts/suite": {"internal/testing/devpg"},

		"examples/likes": {"app", "jobs", "schema", "workers"},

		"consumer":                      {"internal/archive", "internal/crashpoint", "internal/retry", "schema"},
		"consumer/firehose":             {"consumer", "consumer/socket", "internal/atproto/syntax"},
		"consumer/jetstream":            {"consumer", "consumer/jetstream/dictionary", "consumer/socket", "internal/atproto/syntax"},
		"consumer/jetstream/dictionary": {},
		"consumer/nostr":                {"internal/archive", "consumer", "consumer/socket", "internal/nostr", "internal/nostr/negentropy"},
		"consumer/recording":            {"consumer"},
		"consumer/socket":               {"consumer", "internal/retry"},
		"workers":                       {"internal/archive", "internal/archive/catalog", "internal/archive/clickhouse", "internal/atproto/bluesky", "internal/links/card", "internal/collection", "internal/crashpoint", "internal/history", "jobs", "internal/lexicon", "internal/lexicon/rules", "internal/links/link", "internal/nostr", "internal/nostr/directory", "internal/ops/health", "internal/ranking", "internal/lexicon/records", "internal/links/redirect", "internal/retry", "schema", "internal/lexicon/verdict", "internal/nostr/wellknown"},
		"internal/ops/compare":          {},
		"internal/ops/doctor":           {"consumer", "schema"},
		"internal/ops/health":           {"internal/archive/catalog", "internal/history", "jobs", "internal/nostr/directory", "schema"},
		"internal/ops/trace":            {"internal/collection", "internal/links/link", "internal/ranking", "schema"},
		"internal/web":                  {"internal/nostr", "internal/ops/health", "internal/ranking", "internal/lexicon/records", "schema", "internal/atproto/syntax"},
		"internal/web/browsertest":      {"internal/testing/eventually"},
		"internal/ranking":              {"internal/links/link/title", "internal/nostr", "internal/ops/health", "schema"},
		"internal/lexicon/records":      {"internal/lexicon", "schema"},
		"internal/lexicon/verdict":      {"internal/lexicon", "schema"},

		"internal/archive":                           {},
		"internal/archive/archivetest":               {"internal/archive"},
		"internal/archive/catalog":                   {"internal/archive", "schema"},
		"internal/archive/clickhouse":                {"internal/archive", "consumer", "internal/links/link"},
		"internal/archive/clickhouse/clickhousetest": {"internal/testing/eventually", "internal/testing/loopback"},
		"internal/archive/dir":                       {"internal/archive"},
		"internal/archive/s3":                        {"internal/archive"},
		"internal/atproto/bluesky":                   {"internal/guard", "internal/retry"},
		"internal/links/card":                        {"internal/guard", "internal/links/link", "internal/links/link/title", "internal/retry"},
		"internal/collection":                        {},
		"internal/crashpoint":                        {},
		"internal/testing/devpg":                     {"internal/testing/loopback"},
		"internal/testing/eventually":                {},
		"internal/guard":                             {},
		"internal/guard/guardtest":                   {"internal/guard"},
		"internal/history":                           {"schema"},
		"jobs":                                       {"internal/links/link"},
		"internal/links/link":                        {"internal/links/link/title", "internal/nostr"},
		"internal/links/link/title":                  {},
		"internal/links/redirect":                    {"internal/guard", "internal/links/link", "internal/retry"},
		"internal/testing/loopback":                  {},
		"internal/retry":                             {},
		"schema":                                     {"internal/archive", "internal/collection"},
		"internal/testing/schematest":                {"internal/testing/devpg", "schema"},
		"internal/testing/simnet":                    {"consumer/jetstream/dictionary", "internal/testing/loopback"},
		"internal/lexicon":                           {"internal/atproto/syntax"},
		"internal/lexicon/rules":                     {"internal/lexicon", "internal/atproto/syntax"},
		"internal/nostr":                             {},
		"internal/nostr/directory":                   {"schema"},
		"internal/nostr/negentropy":                  {},
		"internal/atproto/syntax":                    {},
		"internal/nostr/wellknown":                   {"internal/guard", "internal/nostr"},
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
